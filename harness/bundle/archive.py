"""A bundle's archive: packed to the same bytes for the same files, and unpacked without trust."""

import contextlib
import gzip
import hashlib
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath

from harness.base.errors import UserError
from harness.base.files import file_atomic, user_errors

SUMS = "SHA256SUMS"  # as `sha256sum --check` reads it
SUFFIX = ".tar.gz"


def files_in(folder: Path) -> list[str]:
    """Return the plain files below `folder` by their names relative to it, in the order of the archive."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path) -> None:
    """Write the checksums of all files in `folder` beside them."""
    lines = [f"{sha256(folder / name)}  {name}\n" for name in files_in(folder) if name != SUMS]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def pack(folder: Path, target: Path, moment: datetime) -> None:
    """Write the files of `folder` to the archive `target`, whole or not at all, below the archive's own name.

    All of them have the time `moment` and no owner, so that equal files make equal archives.

    Raises:
        UserError: it cannot be written.
    """
    top = target.name.removesuffix(SUFFIX)
    with (
        file_atomic(target, "bundle") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in files_in(folder):
            path = folder / name
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = path.stat().st_size
            entry.mtime = int(moment.timestamp())
            entry.mode = 0o755 if path.suffix == ".sh" else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)


@contextlib.contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """Yield a temporary folder with the files of `archive`, without its top folder.

    Raises:
        UserError: it is cut, damaged or larger than the free disk, or has anything but plain files below one folder.
    """
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as name:
        folder = Path(name)
        with user_errors("temporary folder", folder):
            _unpack(archive, folder)
        yield folder


def _unpack(archive: Path, folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    top_folders = set()
    try:
        with tarfile.open(archive, "r:gz") as opened:
            for entry in opened:
                parts = PurePosixPath(entry.name).parts
                if not entry.isreg() or len(parts) < 2 or entry.name.startswith("/") or {"..", "."} & set(parts):
                    raise UserError(f"'{archive}' holds '{entry.name}', not a plain file in its folder: not a bundle")
                target = folder.joinpath(*parts[1:])
                top_folders.add(parts[0])
                free_bytes -= entry.size
                if free_bytes < 0:
                    raise UserError(f"'{archive}' is larger than the free disk below '{folder.parent}': set TMPDIR")
                if len(top_folders) > 1 or target.exists():
                    raise UserError(f"'{archive}' has '{entry.name}' twice or in a second folder: not a bundle")
                content = opened.extractfile(entry)
                assert content is not None
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("xb") as file:
                    shutil.copyfileobj(content, file)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"'{archive}' cannot be read: {error.strerror}") from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, FileExistsError, NotADirectoryError) as error:
        raise UserError(f"'{archive}' is cut, damaged or not an archive of `harness bundle`: {error}") from error


def wrong_files(folder: Path) -> list[str]:
    """Return a sentence on every file of an unpacked bundle that does not have its stated checksum.

    Raises:
        UserError: the checksums are missing or damaged.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the archive has no readable {SUMS}: it is not a bundle, or a damaged one") from error
    stated_sums = {}
    for line in lines:
        digest, _, name = line.partition("  ")
        stated_sums[name] = digest
    stated = set(stated_sums)
    present = set(files_in(folder)) - {SUMS}
    changed = [name for name in sorted(present & stated) if sha256(folder / name) != stated_sums[name]]
    return [
        *(f"'{name}' is missing from the bundle" for name in sorted(stated - present)),
        *(f"'{name}' is in the bundle and has no checksum" for name in sorted(present - stated)),
        *(f"'{name}' was changed" for name in changed),
    ]
