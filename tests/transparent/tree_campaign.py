"""Ranks that change all they find, killed at random: the user's files are afterwards, byte for byte, what they were.

``python -m tests.transparent.tree_campaign --draws 200 --seed 1``, as root: each draw has mounts of its own.
"""

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.base import mounts
from tests.mpi.launch import ROOT

VANDAL = ROOT / "tests" / "scripts" / "vandal.py"
USER = 65534
PLACES = ("disk", "mount below", "file mount below", "read-only", "tmpfs", "full", "many entries")
RANK = """
import os, runpy, sys
from pathlib import Path
from harness.transparent.private_files.private_tree import PrivateTree, TreePlaces
project = Path(sys.argv[4])
logs = project.parent / "logs"
who = (os.getuid(), os.getgid(), os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt"))
try:
    tree = PrivateTree()
except OSError as error:
    assert who == (os.getuid(), os.getgid(), os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt"))
    sys.exit(77)
try:
    places = TreePlaces(deep=[project], shallow=[Path(os.environ["TMPDIR"]), Path("/tmp")], shared=[logs])
    tree.show(places)
except OSError as error:
    sys.exit(77)
os.chdir(project)
print("shown", flush=True)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One launch: where the user's files are, who runs it, whether namespaces are refused, and what is killed when."""

    seed: int
    place: str
    is_root: bool
    is_refused: bool
    is_whole: bool
    killed: str
    delay_s: float


def drawn(seed, *, whole):
    draw = random.Random(seed)
    return Draw(
        seed=seed,
        place=draw.choice(PLACES),
        is_root=draw.random() < 0.5,
        is_refused=draw.random() < 0.2,
        is_whole=whole,
        killed=draw.choice(("a rank", "all ranks", "the launcher", "nothing")),
        delay_s=draw.uniform(0.0, 3.5 if whole else 0.8),
    )


def make_files(top, place):
    """Make a user's files: small and large, links, modes, a repository, HDF5, a database."""
    for name in ("proj/src/deep/deeper", "proj/.git/objects", "proj/data", "home", "other", "temporary", "logs"):
        (top / name).mkdir(parents=True)
    project = top / "proj"
    (project / "train.py").write_text("print('mine')\n")
    for number in range(6):
        (project / "src" / f"notes{number}.txt").write_text(f"my work {number}\n" * 40)
    (project / "src" / "deep" / "deeper" / "rows.csv").write_text("1,2\n" * 100)
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (project / ".git" / "objects" / "pack").write_bytes(os.urandom(2000))
    (project / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + os.urandom(5 * 2**20))
    (project / "data" / "large.bin").write_bytes(os.urandom(5 * 2**20))
    (project / "data" / "small.bin").write_bytes(os.urandom(500))
    (project / "secret").write_text("mine alone")
    (project / "secret").chmod(0o600)
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "src" / "link").symlink_to("notes0.txt")
    (project / "outside").symlink_to(top / "other")
    (project / "hard").hardlink_to(project / "train.py")
    (top / "other" / "disk.txt").write_text("of another disk")
    (top / "other" / "large.bin").write_bytes(os.urandom(5 * 2**20))
    (top / "home" / ".profile").write_text("mine\n")
    (project / "dropbox").mkdir()
    (project / "dropbox" / "letter").write_text("unread")
    (project / "dropbox").chmod(0o300)
    if place == "many entries":
        for number in range(5100):
            (project / f"entry{number}").touch()


def owned_by(top, user):
    for folder, folders, files in os.walk(top):
        for name in (".", *folders, *files):
            os.chown(Path(folder, name), user, user, follow_symlinks=False)


def seen(top):
    """Return what every file of the user is: kind, mode, owner, times, contents.

    Rank 0's own are left out, and what libraries keep in a home.
    """
    state = {}
    others = [top / name for name in ("temporary", "logs", "home/.cache", "home/.config", "home/.keras")]
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if Path(folder, name) not in others]
        for name in (*folders, *files):
            path = Path(folder, name)
            found = path.lstat()
            if name.startswith(("rank0", "harness-logs")) or path in others:
                continue
            content = None
            if path.is_symlink():
                content = str(path.readlink())
            elif stat.S_ISREG(found.st_mode):
                content = (found.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
            state[str(path.relative_to(top))] = (found.st_mode, found.st_uid, found.st_gid, content)
    return state


def prepare(draw, top):
    """Make the user's files and the mounts of this draw; this process has mounts of its own."""
    if draw.place in ("tmpfs", "full"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", top], check=True)
    make_files(top, draw.place)
    owned_by(top, 0 if draw.is_root else USER)
    (top / "temporary").chmod(0o1777)
    if draw.place == "mount below":
        subprocess.run(["mount", "--bind", top / "other", top / "proj" / "data"], check=True)
    elif draw.place == "file mount below":
        subprocess.run(["mount", "--bind", top / "other" / "disk.txt", top / "proj" / "src" / "notes1.txt"], check=True)
    elif draw.place == "full":
        with contextlib.suppress(OSError), (top / "filling").open("wb", buffering=0) as filling:
            while True:
                filling.write(bytes(2**16))
    elif draw.place == "read-only":
        subprocess.run(["mount", "--bind", top / "proj", top / "proj"], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", top / "proj"], check=True)


def open_python_to_all():
    """Let an ordinary user reach this Python, which may lie in root's home: in this process's mounts only."""
    closed = [path for path in reversed(Path(sys.base_prefix).resolve().parents) if not path.stat().st_mode & 0o001]
    if not closed:
        return
    with mounts.opened(Path(sys.base_prefix).resolve()) as prefix:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "none", closed[0]], check=True)
        Path(sys.base_prefix).resolve().mkdir(parents=True)
        mounts.bind(prefix, Path(sys.base_prefix).resolve())


def prefix_words(draw, top):
    """Return the words before a command that make its process what the draw says."""
    words = []
    if draw.is_refused:  # in a root of its own the kernel gives nobody a user namespace
        root = top.parent / "root"
        root.mkdir()
        subprocess.run(["mount", "--rbind", "/", root], check=True)
        words = ["chroot", str(root)]
    if not draw.is_root:
        return [*words, "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    if draw.is_refused:
        return [*words, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    return words


def environment(top):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    return kept | {
        "HOME": str(top / "home"),
        "TMPDIR": str(top / "temporary"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HARNESS_CACHE_DIR": str(top / "temporary" / "cache"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def start(draw, top):
    """Start the launch; return its processes and how many of them have a tree of their own, -1 where none is asked."""
    words = prefix_words(draw, top)
    folders = [str(top / name) for name in ("proj", "home", "other")]
    if draw.is_whole:
        command = [*words, sys.executable, "-m", "harness", "run", "-n", "2", "--hang-timeout=20", "--logs"]
        command += [str(top / "logs"), str(VANDAL), "3", str(draw.seed), *folders]
        return [subprocess.Popen(command, cwd=top / "home", env=environment(top), **QUIET)]
    command = [*words, sys.executable, "-c", RANK, str(VANDAL), "1.0", str(draw.seed), *folders]
    first = subprocess.Popen(
        [*words, sys.executable, str(VANDAL), "1.0", "0", *folders],
        env=environment(top) | {"VANDAL_RANK": "0"},
        **QUIET,
    )
    return [first, *(subprocess.Popen(command, env=environment(top), **QUIET) for _ in range(2))]


QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def kill(draw, processes):
    """Kill what the draw says with SIGKILL."""
    family = [child for process in processes for child in descendants(process.pid)]
    ranks = (
        family
        if draw.is_whole
        else [psutil.Process(process.pid) for process in processes[1:] if process.poll() is None]
    )
    chosen = random.Random(draw.seed)
    if draw.killed == "a rank" and ranks:
        end([chosen.choice(ranks)])
    elif draw.killed == "all ranks":
        end(ranks)
    elif draw.killed == "the launcher":
        processes[0].send_signal(signal.SIGKILL)
    return family


def descendants(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def launch(draw, top):
    """Make one launch; return what became of its ranks."""
    processes = start(draw, top)
    if not draw.is_whole and not draw.is_refused:
        for process in processes[1:]:
            process.stdout.readline()
    deadline = time.monotonic() + 60
    while draw.is_whole and processes[0].poll() is None and time.monotonic() < deadline:
        if (top / "logs" / "rank-1.log").exists():
            break
        time.sleep(0.05)
    time.sleep(draw.delay_s)
    family = kill(draw, processes)
    if draw.is_whole:  # ranks whose launcher is gone hold its output
        with contextlib.suppress(subprocess.TimeoutExpired):
            processes[0].wait(45)
        end(family)
    outputs = []
    for process in processes:
        try:
            outputs.append(process.communicate(timeout=90)[0] or "")
        except subprocess.TimeoutExpired:
            end([psutil.Process(process.pid), *descendants(process.pid)])
            outputs.append("(ended after 90 s)")
    end(family)
    codes = [process.returncode for process in processes]
    return codes if draw.is_whole else codes[1:], "\n".join(outputs)


def end(processes):
    """Kill what is left of a launch, so that the next one has the machine."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def rests(top):
    """Return the folders of ranks that are still there some seconds after the launch has ended."""
    deadline = time.monotonic() + 15
    while (left := list((top / "temporary").glob("harness-rank-*"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [path.name for path in left]


def run_draw(draw, top):
    """Make one draw in mounts of its own; return the ranks' exit codes and what is wrong, empty where nothing is."""
    prepare(draw, top)
    open_python_to_all()
    before = seen(top)
    codes, output = launch(draw, top)
    left = rests(top)
    after = seen(top)
    wrong = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    faults = [f"{name}: {before.get(name)} -> {after.get(name)}" for name in wrong[:5]]
    if left:
        faults.append(f"left in the temporary folder: {left}")
    if draw.is_refused and draw.killed == "nothing" and set(codes) != ({2} if draw.is_whole else {77}):
        faults.append(f"not refused: {codes} {output[-300:]}")
    if os.environ.get("CAMPAIGN_VERBOSE"):
        print(output[-2000:], flush=True)
    return codes, faults


def in_mounts_of_its_own(draw):
    """Make a draw in a child process; return its line."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    folder.chmod(0o755)
    top = folder / "top"
    top.mkdir()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mounts.unshare_mounts()
            codes, faults = run_draw(draw, top)
            os.write(writing, (f"{codes} " + "; ".join(faults)).encode()[:60_000])
            code = bool(faults)
        except BaseException as error:  # noqa: BLE001 - it is the child's last word
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading) as told:  # noqa: PTH123 - a descriptor
        line = told.read()
    _, status = os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return status == 0, line


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--whole", type=int, default=0, help="draws by `harness run`")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    for number in range(asked.draws + asked.whole):
        draw = drawn(asked.seed + number, whole=number >= asked.draws)
        is_well, line = in_mounts_of_its_own(draw)
        who = "root" if draw.is_root else "user"
        namespaces = "refused" if draw.is_refused else "allowed"
        counts[f"{'whole' if draw.is_whole else 'tree'}, {who}, namespaces {namespaces}"] += 1
        counts[f"place {draw.place}"] += 1
        counts[f"killed {draw.killed}"] += 1
        counts["wrong"] += not is_well
        if not is_well or os.environ.get("CAMPAIGN_VERBOSE"):
            print(draw, "well" if is_well else "WRONG", line, flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:5} {name}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
