"""A bundle's archive and what it says it holds (``bundle.json``): packed, and unpacked with all checks."""

import contextlib
import errno
import gzip
import platform
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import file_atomic, sha256_of, user_errors
from harness.base.provenance import package_version
from harness.schema.record import decode

# A bundle's archive: packed to the same bytes for the same files, and unpacked without trust.
#
# What is unpacked is read by its raw headers, not by `tarfile`, which reads a header as long as it says to be into
# memory and lets one header change what the next means. Only what `pack` writes is taken: plain files, and PAX headers
# that hold a long name.

SUMS = "SHA256SUMS"  # as `sha256sum --check` reads it
SUFFIX = ".tar.gz"
MOST_FILES = 200_000
MOST_BYTES = 50 * 2**30  # of all files together
MOST_RATIO = 100  # of the files to the archive, from `RATIO_BYTES` on
RATIO_BYTES = 2**30
MOST_HEADER_BYTES = 2**16  # of a PAX header: a name
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 2**20


def files_in(folder: Path) -> list[str]:
    """Return the plain files below `folder` by their names relative to it, in the order of the archive."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write_sums(folder: Path) -> None:
    """Write the checksums of all files in `folder` beside them."""
    lines = [f"{sha256_of(folder / name)}  {name}\n" for name in files_in(folder) if name != SUMS]
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
        sizes = [(folder / name).stat().st_size for name in files_in(folder)]
        _check_amount(target, len(sizes), sum(sizes))


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
    files, total_bytes = 0, 0
    try:
        packed_bytes = archive.stat().st_size
        with gzip.open(archive, "rb") as stream:
            for name, size in _entries(archive, stream):
                files += 1
                total_bytes += size
                _check_amount(archive, files, total_bytes)
                if total_bytes > max(RATIO_BYTES, MOST_RATIO * packed_bytes):
                    raise UserError(f"'{archive}' unpacks to more than {MOST_RATIO} times its size: not a bundle")
                if total_bytes > free_bytes // 2:  # others need the disk too
                    raise UserError(f"'{archive}' needs half of the free disk below '{folder.parent}': set TMPDIR")
                target, top = _place(archive, folder, name)
                top_folders.add(top)
                if len(top_folders) > 1 or target.exists():
                    raise UserError(f"'{archive}' has '{name}' twice or in a second folder: not a bundle")
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    _copy(stream, size, file)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"'{archive}' cannot be read: {error.strerror}") from error
    except (
        tarfile.TarError,
        ValueError,
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        FileExistsError,
        NotADirectoryError,
    ) as error:
        raise UserError(f"'{archive}' is cut, damaged or not an archive of `harness bundle`: {error}") from error
    except OSError as error:
        if error.errno != errno.EIO:  # a device, or a broken disk
            raise
        raise UserError(f"'{archive}' cannot be read: {error.strerror}") from error


def _check_amount(archive: Path, files: int, total_bytes: int) -> None:
    """Refuse more than an archive may hold, when it is written and when it is read."""
    if files > MOST_FILES or total_bytes > MOST_BYTES:
        raise UserError(
            f"'{archive}' has more than {MOST_FILES:,} files or {MOST_BYTES >> 30} GiB of them: bundle fewer sweeps"
        )


def _entries(archive: Path, stream: gzip.GzipFile) -> Iterator[tuple[str, int]]:
    """Yield name and size of every file in the open `stream`; whoever asks for the next has read the content.

    Raises:
        UserError: there is anything but files of `pack`.
        ValueError, EOFError, tarfile.TarError: it is cut or damaged.
    """
    long_name = ""
    while (block := _exactly(stream, _BLOCK)).strip(b"\0"):
        entry = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        name = long_name or entry.name
        long_name = ""
        if entry.type == tarfile.XHDTYPE and 0 < entry.size <= MOST_HEADER_BYTES:
            long_name = _long_name(_exactly(stream, entry.size))
            _exactly(stream, -entry.size % _BLOCK)
        elif entry.type == tarfile.REGTYPE and entry.size >= 0:
            yield name, entry.size
            _exactly(stream, -entry.size % _BLOCK)
        else:
            raise UserError(f"'{archive}' holds '{name}', not a plain file in its folder: not a bundle")


def _long_name(header: bytes) -> str:
    """Return the name that a PAX header gives to the next file; raise a ValueError if it says anything else."""
    length, _, record = header.partition(b" ")
    keyword, _, name = record.partition(b"=")
    if int(length) != len(header) or keyword != b"path" or not name.endswith(b"\n") or name == b"\n":
        raise ValueError("a header says more than a name")
    return name[:-1].decode()


def _exactly(stream: gzip.GzipFile, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("it ends before its end")
    return content


def _copy(stream: gzip.GzipFile, size: int, file: BinaryIO) -> None:
    """Copy the next `size` bytes of `stream` to `file`."""
    while size > 0:
        chunk = _exactly(stream, min(size, _CHUNK))
        file.write(chunk)
        size -= len(chunk)


def _place(archive: Path, folder: Path, name: str) -> tuple[Path, str]:
    """Return where below `folder` the file `name` of the archive goes, and its top folder."""
    parts = PurePosixPath(name).parts
    is_elsewhere = len(parts) < 2 or name.startswith("/") or {"..", "."} & set(parts)
    if is_elsewhere or not name.isprintable():
        raise UserError(f"'{archive}' holds '{name}', not a plain file in its folder: not a bundle")
    return folder.joinpath(*parts[1:]), parts[0]


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
    changed = [name for name in sorted(present & stated) if sha256_of(folder / name) != stated_sums[name]]
    return [
        *(f"'{name}' is missing from the bundle" for name in sorted(stated - present)),
        *(f"'{name}' is in the bundle and has no checksum" for name in sorted(present - stated)),
        *(f"'{name}' was changed" for name in changed),
    ]


# What a bundle says it holds: ``bundle.json``.

MANIFEST = "bundle.json"
SCHEMA = 1
RECORDS = "results"
REPORTS = "reports"
_DRAWING = ("matplotlib", "numpy", "pandas", "scipy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a bundle holds (``bundle.json``). `moment` is the end of its newest launch, `launches` counts the records.

    `drawn_with` are the versions that the figures' bytes depend on.
    """

    schema: int
    name: str
    moment: datetime
    sweeps: tuple[str, ...]
    launches: int
    harness: str
    drawn_with: str


def drawn_with() -> str:
    """Return the versions, here and now, that the bytes of a figure depend on."""
    parts = [f"Python {platform.python_version()}", f"harness {__version__}"]
    return ", ".join([*parts, *(f"{name} {package_version(name)}" for name in _DRAWING)])


def open_bundle(folder: Path) -> Manifest:
    """Return the manifest of an unpacked bundle all of whose files have their checksums.

    Raises:
        UserError: a file is missing, changed or unknown, or the manifest is damaged or of another version.
    """
    wrong = wrong_files(folder)
    if wrong:
        raise UserError(f"{wrong[0]}{f' (and {len(wrong) - 1} more)' if wrong[1:] else ''}: get the bundle again")
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"the archive has no {MANIFEST}: it is not a bundle")
    manifest = decode(path.read_bytes(), Manifest, Path(MANIFEST))
    if manifest.schema != SCHEMA:
        raise UserError(f"the bundle has schema {manifest.schema}, this harness reads {SCHEMA}: use a newer harness")
    if any("/" in name or name.startswith(".") or not (folder / RECORDS / name).is_dir() for name in manifest.sweeps):
        raise UserError(f"{MANIFEST} names a sweep that is not in the bundle")
    return manifest
