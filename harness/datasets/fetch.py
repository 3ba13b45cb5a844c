"""Fetch a data set's original files, resumed and checked by hash, and check what was prepared from them."""

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.files import locked, make_folder, user_errors, write_atomic
from harness.datasets.data_source import DataSource, file_sha256
from harness.datasets.dataset import Dataset, Download, shift_and_factor
from harness.datasets.known import info
from harness.datasets.prepare import Prepared

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes of the whole file (None while unknown)."""

_CHUNK = 1 << 20
_IDLE_ATTEMPTS = 3
_TIMEOUT_S = (15, 60)  # to connect, between two chunks
_NO_NAME = "the host's name is not known here"
_CAUSES = {"refused": "connection refused", "timed out": "timed out", "resolve": _NO_NAME, "Name or service": _NO_NAME}


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumingDownloader:
    """A downloader for pooch: bytes go to the file `part`, which is kept when the transfer breaks.

    A server that ignores the Range header makes the transfer start again. `pause` seconds between attempts.
    """

    part: Path
    progress: Progress
    pause: float = 1.0

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Bring `url` to `output_file`; raise a UserError if the server refuses, or attempts in a row bring nothing."""
        from requests import HTTPError, RequestException
        from urllib3.exceptions import HTTPError as TransferError

        idle, reason = 0, ""
        while idle < _IDLE_ATTEMPTS:
            before = _size(self.part)
            try:
                if self._attempt(url):
                    self.part.replace(output_file)
                    return
                reason = "the connection ended early"
            except HTTPError as error:
                raise UserError(f"{url} cannot be downloaded ({error}): try --mirror URL") from error
            except (RequestException, TransferError) as error:
                reason = next((words for sign, words in _CAUSES.items() if sign in str(error)), type(error).__name__)
            idle = 0 if _size(self.part) > before else idle + 1
            time.sleep(self.pause if idle < _IDLE_ATTEMPTS else 0)
        kept = _size(self.part)
        again = f"{kept:,} bytes are kept, the same command continues from there" if kept else "or try --mirror URL"
        raise UserError(f"{url} cannot be downloaded ({reason}): check the network; {again}")

    def _attempt(self, url: str) -> bool:
        """Fetch what is missing; return whether the file is whole."""
        import requests

        have = _size(self.part)
        # No content coding: a .gz file must arrive as the bytes that its hash is of.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
            if response.status_code == 416:  # nothing beyond what is there: whole, or not of this file
                whole = response.headers.get("Content-Range", "") == f"bytes */{have}"
                if not whole:
                    self.part.unlink(missing_ok=True)
                return whole
            response.raise_for_status()
            start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            resumed = response.status_code == 206 and start is not None and int(start[1]) == have
            done = have if resumed else 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            with self.part.open("ab" if resumed else "wb") as file:
                for chunk in response.raw.stream(_CHUNK, decode_content=False):
                    file.write(chunk)
                    done += len(chunk)
                    self.progress(done, total)
        return total is None or done == total


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


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
    place = make_folder(folder / name, "data folder", "choose --data-dir")
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
        raise UserError(f"'{pin}' holds no SHA-256: delete it to pin the file again")
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
            f"{url} does not have the {kind} SHA-256 {known}: it was removed; try again or --mirror URL"
        ) from error
    if known is None:
        with path.open("rb") as content:
            write_atomic(_pin(path), f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {file.name}\n")
    return path


def _pin(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCheck:
    """One fact: what was found, what is published, and whether they agree (None: nothing to compare with)."""

    what: str
    found: str
    expected: str = ""
    agrees: bool | None = None


def verify(source: DataSource, prepared: Prepared) -> list[FileCheck]:
    """Return the checks of rows, classes, value range, and mean and deviation of real data, in this order.

    Rows that were held out of a training part count as training rows again here.
    """
    facts, record = info(source.name), prepared.record
    train_y, test_y = prepared.train_y, prepared.test_y
    if record.held_out:
        train_y, test_y = np.concatenate([train_y, test_y]), test_y[:0]
    checks = [*_hashes(source, facts), *_rows(facts, record.held_out, len(train_y), len(test_y))]
    for part, labels, counts in (("train", train_y, facts.train_counts), ("test", test_y, facts.test_counts)):
        if len(labels):
            found = tuple(np.bincount(labels, minlength=record.classes).tolist())
            checks.append(_compare(f"{part} rows per class", found, counts))
    blocks = prepared.blocks(record.train_rows + record.test_rows)
    extremes = [(float(block.min()), float(block.max())) for block in blocks]
    low, high = min(low for low, _ in extremes), max(high for _, high in extremes)
    bounds = facts.value_range
    checks.append(
        FileCheck(
            what="values",
            found=f"{low:g} to {high:g}",
            expected="" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}",
            agrees=None if bounds is None else bool(bounds[0] <= low and high <= bounds[1]),
        )
    )
    if facts.channel_mean:  # scaled to 0..1, of all rows that the original trains on
        shift, factor = shift_and_factor(prepared.blocks(len(train_y)), facts.features, facts.standardise)
        for name, values, expected in (
            ("mean per channel", shift / 255, facts.channel_mean),
            ("deviation per channel", 1 / factor / 255, facts.channel_std),
        ):
            checks.append(_compare(name, tuple(round(value, 4) for value in values.tolist()), expected))
    return checks


def _hashes(source: DataSource, facts: Dataset) -> list[FileCheck]:
    downloads = {file.name: file for file in facts.downloads}
    checks = []
    for path in source.files:
        file = downloads.get(path.name)
        known = published_or_pinned(file, path) if file else None
        found = file_sha256(path)
        expected = (
            "" if known is None else "as published" if found == known else f"published {known}: packed differently"
        )
        # The same content packed differently has a different hash: that is no fault, the content is checked below.
        checks.append(
            FileCheck(what=f"sha256 {path.name}", found=found, expected=expected, agrees=found == known or None)
        )
    return checks


def _rows(facts: Dataset, held_out: bool, train: int, test: int) -> list[FileCheck]:
    if not facts.train_rows:
        return [FileCheck(what="rows", found=f"{train + test:,}")]
    if not facts.separate_test:
        found, whole = train + test, facts.train_rows + facts.test_rows
        expected = f"{whole:,}" + (": this is a piece" if found < whole else "")
        agrees = None if found < whole else found == whole
        return [FileCheck(what="rows", found=f"{found:,}", expected=expected, agrees=agrees)]
    checks = [_compare("train rows", (train,), (facts.train_rows,))]
    if held_out:
        return [*checks, FileCheck(what="test rows", found="no test files", expected=f"{facts.test_rows:,}")]
    return [*checks, _compare("test rows", (test,), (facts.test_rows,))]


def _compare(what: str, found: tuple[float, ...], expected: tuple[float, ...]) -> FileCheck:
    agrees = found == expected if expected else None
    words = (" ".join(f"{value:,}" for value in values) for values in (found, expected))
    return FileCheck(what=what, found=next(words), expected=next(words), agrees=agrees)
