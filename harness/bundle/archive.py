"""A folder as one archive, the same bytes for the same files; and the way out of it, which trusts nothing inside."""

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
_SUFFIX = ".tar.gz"


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


def read_sums(folder: Path) -> dict[str, str]:
    """Return the checksums that an unpacked archive states, by file.

    Raises:
        UserError: they are missing or damaged.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the archive has no readable {SUMS}: it is no bundle, or a damaged one") from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def pack(folder: Path, target: Path, moment: datetime) -> None:
    """Write the files of `folder` to the archive `target`, whole or not at all, below the archive's own name.

    All of them are of `moment` and of nobody, so that equal files make equal archives.

    Raises:
        UserError: it cannot be written.
    """
    top = target.name.removesuffix(_SUFFIX)
    with (
        file_atomic(target, "bundle") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in files_in(folder):
            _add(archive, folder / name, f"{top}/{name}", moment)


def _add(archive: tarfile.TarFile, path: Path, name: str, moment: datetime) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = path.stat().st_size, int(moment.timestamp())
    entry.mode = 0o755 if path.suffix == ".sh" else 0o644
    with path.open("rb") as file:
        archive.addfile(entry, file)


@contextlib.contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """Yield a temporary folder with the files of `archive`, without its top folder; it is gone after the block.

    Raises:
        UserError: it is cut, damaged or larger than the free disk, or has anything but plain files below one folder.
    """
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as name:
        folder = Path(name)
        with user_errors("temporary folder", folder):
            _unpack(archive, folder)
        yield folder


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive, "r:gz") as opened:
            room, tops = shutil.disk_usage(folder).free, set()
            for entry in opened:
                top, name = _place(entry, archive)
                tops.add(top)
                room -= entry.size
                if room < 0:
                    raise UserError(f"'{archive}' is larger than the free disk below '{folder.parent}': set TMPDIR")
                if len(tops) > 1 or (folder / name).exists():
                    raise UserError(f"'{archive}' has '{entry.name}' twice or in a second folder: it is no bundle")
                content = opened.extractfile(entry)
                assert content is not None
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with content, (folder / name).open("xb") as file:
                    shutil.copyfileobj(content, file)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"'{archive}' cannot be read: {error.strerror}") from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, FileExistsError, NotADirectoryError) as error:
        raise UserError(f"'{archive}' is cut, damaged or no archive of `harness bundle`: {error}") from error


def _place(entry: tarfile.TarInfo, archive: Path) -> tuple[str, Path]:
    """Return the top folder of a member and its place below that.

    Raises:
        UserError: it is no plain file, or it would be written elsewhere.
    """
    parts = PurePosixPath(entry.name).parts
    if not entry.isreg() or len(parts) < 2 or entry.name.startswith("/") or {"..", "."} & set(parts):
        raise UserError(f"'{archive}' holds '{entry.name}', which is no plain file in its folder: it is no bundle")
    return parts[0], Path(*parts[1:])
