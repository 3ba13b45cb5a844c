"""A user's script of which every rank but rank 0 writes, changes and removes whatever it finds in the given folders.

Rank 0 writes only files whose names begin with rank0. Arguments: seconds, seed, folders.
"""

import contextlib
import os
import random
import shutil
import sqlite3
import sys
import time
from pathlib import Path

CHANGES = ("write", "append", "patch", "truncate", "empty", "mode", "rename", "remove", "link", "times", "make", "base")


def is_first_rank():
    """Tell whether the launcher has called this process rank 0: the harness hides that from scripts."""
    words = Path("/proc/self/environ").read_bytes().split(b"\0")
    return any(word in (b"OMPI_COMM_WORLD_RANK=0", b"VANDAL_RANK=0") for word in words)


def change(path, way, draw):
    """Change one file or folder in one way; what the system refuses is left."""
    if way == "write" and path.is_file():
        path.write_bytes(b"written")
    elif way == "append" and path.is_file():
        with path.open("ab") as file:
            file.write(b"appended")
    elif way == "patch" and path.is_file():
        with path.open("r+b") as file:
            file.write(b"patched")
    elif way == "truncate" and path.is_file():
        os.truncate(path, 1)
    elif way == "empty" and path.is_file():
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    elif way == "mode":
        path.chmod(draw.choice((0o000, 0o444, 0o777)))
    elif way == "rename":
        path.rename(path.with_name(f"renamed-{draw.random()}"))
    elif way == "remove":
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    elif way == "link":
        path.with_name(f"link-{draw.random()}").symlink_to(path)
        path.with_name(f"hard-{draw.random()}").hardlink_to(path)
    elif way == "times":
        os.utime(path, (1, 1))
    elif way == "make":
        folder = path if path.is_dir() else path.parent
        (folder / f"made-{draw.random()}").mkdir()
        (folder / f"new-{draw.random()}").write_text("new")
    elif way == "base" and path.is_dir():
        with sqlite3.connect(path / "base.db") as base:
            base.execute("CREATE TABLE rows (loss)")


def vandalise(seconds, seed, folders):
    """Change what is in the folders for so many seconds."""
    draw = random.Random(seed)
    end = time.monotonic() + seconds
    made = 0
    while time.monotonic() < end:
        paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
        for path in draw.sample(paths, min(20, len(paths))):
            try:
                change(path, draw.choice(CHANGES), draw)
                made += 1
            except (OSError, sqlite3.Error):
                pass
    return made


def write_as_first(seconds, folders):
    """Write and change rank 0's own files for so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for folder in folders:
            with contextlib.suppress(OSError), (folder / "rank0.txt").open("a") as file:
                file.write("written\n")
        time.sleep(0.05)


def main():
    seconds = float(sys.argv[1])
    folders = [Path(name) for name in sys.argv[3:]]
    if is_first_rank():
        write_as_first(seconds, folders)
    else:
        print("changes", vandalise(seconds, f"{sys.argv[2]} {os.getpid()}", folders), flush=True)


if __name__ == "__main__":
    main()
