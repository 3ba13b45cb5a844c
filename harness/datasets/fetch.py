"""Fetch a data set's original files, checked by hash (pooch), into a data folder."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from harness.datasets.cache import locked
from harness.datasets.dataset import Download
from harness.datasets.download import Progress, ResumingDownloader
from harness.datasets.registry import info
from harness.errors import UserError
from harness.files import user_errors, write_atomic


def fetch(
    name: str, folder: Path, mirror: str | None, progress: Callable[[Download], Progress], pause: float = 1.0
) -> list[Path]:
    """Download the files of data set `name` into `folder`/`name` and return them; whole ones are left alone.

    `mirror` replaces the addresses' part before the file name. `progress` gives each file's callback;
    `pause` is in seconds, between attempts. A file without a published hash is pinned: its hash is stored
    beside it and checked from then on.

    Raises:
        UserError: a download fails, a hash is wrong (the file is removed), or the folder cannot be written.
    """
    if not info(name).downloads:
        raise UserError(f"{info(name).title} is not free to download: register where it is offered and use --data-dir")
    place = folder / name
    try:
        with user_errors("data folder", place):
            place.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"data folder '{place}' cannot be made: a file is in its way; choose --data-dir") from error
    with locked(place / ".lock"):
        return [_fetch_file(file, place, mirror, progress(file), pause) for file in info(name).downloads]


def published_or_pinned(file: Download, path: Path) -> str | None:
    """Return the SHA-256 that the file at `path` must have: the published one, else the one pinned beside it.

    Raises:
        UserError: the pin is damaged.
    """
    if file.sha256 is not None:
        return file.sha256
    pin = _pin(path)
    if not pin.exists():
        return None
    match = re.match(r"[0-9a-f]{64}\b", pin.read_text(encoding="ascii", errors="replace"))
    if match is None:
        raise UserError(f"'{pin}' holds no SHA-256: delete it to pin the file anew")
    return match[0]


def _fetch_file(file: Download, place: Path, mirror: str | None, progress: Progress, pause: float) -> Path:
    import pooch

    pooch.get_logger().setLevel("WARNING")
    path = place / file.name
    url = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url
    known = published_or_pinned(file, path)
    downloader = ResumingDownloader(part=place / f"{file.name}.part", progress=progress, pause=pause)
    try:
        with user_errors("data folder", place):
            pooch.retrieve(url, known_hash=known, fname=file.name, path=place, downloader=downloader)
    except ValueError as error:
        kind = "published" if file.sha256 else "pinned"
        raise UserError(
            f"{url} has not the {kind} SHA-256 {known}: it was removed; try again or --mirror URL"
        ) from error
    if known is None:
        with path.open("rb") as content:
            write_atomic(_pin(path), f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {file.name}\n")
    return path


def _pin(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
