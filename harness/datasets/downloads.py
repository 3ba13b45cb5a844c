"""How original files get here: fetched from mirrors in their order, resumed, and checked by hash.

`fetch` waits as long as a person who has asked for the files would; `fetch_at_first_use` is for a command that needs
them and has something else to go on with.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.files import cache_folder, hold_lock_file, make_folder, sha256_of, user_errors, write_atomic
from harness.base.removal import remove_file, replace_file
from harness.base.setting_names import setting
from harness.datasets.dataset import Dataset, Download
from harness.datasets.known import dataset_info

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes of the whole file (None while unknown)."""

ShowFile = Callable[[Download], Progress]
"""Called when the transfer of a file begins; returns what is called while it goes on."""

MIRRORS = "HARNESS_MIRROR"
"""The variable with addresses of folders that have the files, tried before the published ones; commas between."""

GIVE_UP_S = 10.0
"""Seconds without news after which `fetch_at_first_use` gives up."""

_CHUNK = 1 << 13  # what has come of a chunk is lost where the connection breaks
_LEAST_NEWS = 1 << 16  # bytes: of a transfer that brings fewer in `GIVE_UP_S` nobody sees the end
_CAUSES = {
    socket.gaierror: "the host's name is not known here",
    ConnectionRefusedError: "connection refused",
    TimeoutError: "timed out",
}
"""What a transfer's failure means, by the system's error at its root."""
_MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh"}


class TransferError(Exception):
    """One address did not bring a file, for the reason that is the message; another one may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long a transfer may take, in seconds: to connect, between two chunks, between two attempts.

    After `attempts` in a row that have brought nothing, the next address is tried.
    """

    connect_s: float = 15.0
    idle_s: float = 60.0
    pause_s: float = 1.0
    attempts: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumingDownloader:
    """A downloader for pooch: bytes go to the file `part`, which is kept when the transfer breaks.

    A server that ignores the Range header makes the transfer start again.
    """

    part: Path
    progress: Progress
    patience: Patience = Patience()

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Bring `url` to `output_file`.

        Raises:
            TransferError: the server refuses, answers with a page, or attempts in a row bring nothing.
        """
        from requests import HTTPError, RequestException
        from urllib3.exceptions import HTTPError as BrokenTransfer

        idle = 0
        reason = ""
        while idle < self.patience.attempts:
            before = _size(self.part)
            try:
                if self._attempt(url):
                    replace_file(self.part, Path(output_file), "download")
                    return
                reason = "the connection ended early"
            except HTTPError as error:
                raise TransferError(f"the server refuses: {error}") from error
            except (RequestException, BrokenTransfer) as error:
                reason = _cause(error)
            idle = 0 if _size(self.part) > before else idle + 1
            time.sleep(self.patience.pause_s if idle < self.patience.attempts else 0)
        arrived = _size(self.part)
        again = f", {arrived:,} bytes are kept, the same command continues from there" if arrived else ""
        raise TransferError(f"{reason}{again}")

    def _attempt(self, url: str) -> bool:
        """Fetch what is missing; return whether the file is whole."""
        import requests

        have = _size(self.part)
        # No content coding: a .gz file must arrive as the bytes that its hash is of.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        limits = (self.patience.connect_s, self.patience.idle_s)
        with requests.get(url, headers=headers, stream=True, timeout=limits) as response:
            if response.status_code == 416:  # nothing beyond what is there: whole, or not of this file
                whole = response.headers.get("Content-Range", "") == f"bytes */{have}"
                if not whole:
                    remove_file(self.part)
                return whole
            response.raise_for_status()
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise TransferError("the answer is a web page, perhaps of a login, not the file")
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


def _cause(error: BaseException) -> str:
    """Return why a transfer failed: by the system's error at the root of `error`, else by the name of its class."""
    link: BaseException | None = error
    while link is not None:
        for kind, cause in _CAUSES.items():
            if isinstance(link, kind):
                return cause
        link = link.__cause__ or link.__context__
    return type(error).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def fetch(
    name: str, folder: Path, mirror: str | None, progress: ShowFile, patience: Patience = Patience()
) -> list[Path]:
    """Download the files of data set `name` into `folder`/`name` and return them; whole ones are left alone.

    `mirror` replaces the addresses' part before the file name. Without one a file is looked for in the folders of
    $HARNESS_MIRROR, at its published address, and at the set's other mirrors, in this order. A file without a
    published hash is pinned: its hash is stored beside it and checked from then on.

    Raises:
        UserError: no address brings a file with the right hash (what has a wrong one is removed), or the folder
            cannot be written.
    """
    dataset = dataset_info(name)
    if not dataset.downloads:
        raise UserError(
            f"{dataset.title} is not free to download: register where it is offered and use {setting('data_dir')}"
        )
    place = make_folder(folder / name, "data folder", "choose --data-dir")
    sources = [mirror.rstrip("/")] if mirror else _sources(dataset)
    fetcher = _Fetcher(place, sources, patience)
    with hold_lock_file(place / ".lock"):
        return [fetcher.fetch(file, progress(file)) for file in dataset.downloads]


def _sources(dataset: Dataset) -> list[str]:
    """Return the addresses of the folders that may have the set's files, the first to try first."""
    mirrors = [word.strip() for word in os.environ.get(MIRRORS, "").split(",")]
    published = [file.url.rpartition("/")[0] for file in dataset.downloads]
    folders = [folder.rstrip("/") for folder in (*mirrors, *published, *dataset.mirrors) if folder]
    return list(dict.fromkeys(folders))


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


class _Fetcher:
    """Brings files into the folder `place` from the first of `sources` that has them."""

    def __init__(self, place: Path, sources: list[str], patience: Patience) -> None:
        self._place = place
        self._sources = sources
        self._patience = patience

    def fetch(self, file: Download, progress: Progress) -> Path:
        """Return the file; sources that have failed are the last from then on."""
        failures: dict[str, str] = {}
        downloader = ResumingDownloader(
            part=self._place / f"{file.name}.part", progress=progress, patience=self._patience
        )
        for source in tuple(self._sources):
            try:
                return self._fetch_from(source, file, downloader)
            except TransferError as error:
                failures[source] = str(error)
                self._sources.remove(source)
                self._sources.append(source)
        reasons = "; ".join(f"{source} ({reason})" for source, reason in failures.items())
        fix = f"check the network, or name a folder that has it by {MIRRORS}=URL in the environment"
        raise UserError(f"{file.name} cannot be downloaded from {reasons}: {fix}")

    def _refuse_other_file(self, path: Path, sha256: str | None) -> None:
        """Refuse to put a download in the place of a file of the user's; in the cache all files are ours.

        Raises:
            UserError: a file of that name is there and is not the original.
        """
        if not path.exists() or self._place.is_relative_to(cache_folder()):
            return
        if not _has_magic(path) or (sha256 is not None and sha256_of(path) != sha256):
            raise UserError(f"'{path}' is there and is not the original: move it away, then fetch again")

    def _fetch_from(self, source: str, file: Download, downloader: ResumingDownloader) -> Path:
        """Bring the file from one source; one without a known hash is pinned."""
        import pooch

        pooch.get_logger().setLevel("WARNING")
        path = self._place / file.name
        sha256 = published_or_pinned(file, path)
        address = f"{source}/{file.name}"
        self._refuse_other_file(path, sha256)
        try:
            with user_errors("data folder", self._place):
                pooch.retrieve(address, known_hash=sha256, fname=file.name, path=self._place, downloader=downloader)
        except ValueError as error:
            kind = "published" if file.sha256 else "pinned"
            raise TransferError(f"what came does not have the {kind} SHA-256 {sha256}, it was removed") from error
        if sha256 is None:
            if not _has_magic(path):
                remove_file(path)
                raise TransferError(f"what came is no {path.suffix} file, it was removed")
            write_atomic(_pin(path), f"{sha256_of(path)}  {file.name}\n")
        return path


def _has_magic(path: Path) -> bool:
    """Return whether a file begins as its suffix promises, true where nothing is known of that."""
    with path.open("rb") as content:
        return content.read(3).startswith(_MAGIC.get(path.suffix, b""))


def _pin(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


@dataclass(kw_only=True, slots=True)
class _News:
    """What a transfer in another thread has brought. `heard` is when, by the monotonic clock; None before it began."""

    heard: float | None = None
    unheard_bytes: int = 0
    given_up: bool = False
    failure: BaseException | None = None
    paths: list[Path] = field(default_factory=list)

    def begin(self, show: ShowFile, file: Download) -> Progress:
        """Return the callback of `file`, which counts what arrives before it is shown."""
        self.heard = time.monotonic() if self.heard is None else self.heard
        progress = show(file)
        before = 0

        def arrived(done: int, total: int | None) -> None:
            nonlocal before
            if self.given_up:
                raise TransferError("given up")
            self.unheard_bytes += max(0, done - before)
            before = done
            if self.unheard_bytes >= _LEAST_NEWS or done == total:
                self.unheard_bytes = 0
                self.heard = time.monotonic()
            progress(done, total)

        return arrived


def fetch_at_first_use(name: str, folder: Path, progress: ShowFile, give_up_s: float = GIVE_UP_S) -> list[Path]:
    """Do as `fetch`, but give up as soon as `give_up_s` seconds have brought no news.

    The limit holds for everything that may hang, such as the look-up of a host's name; it does not while another
    process fetches the same files. What has arrived is kept.

    Raises:
        UserError: as `fetch`, or the limit is reached.
    """
    attempts = 2
    each_s = give_up_s / (
        1 + attempts * len(_sources(dataset_info(name)))
    )  # so that one that hangs leaves time for the others
    patience = Patience(connect_s=each_s, idle_s=each_s, pause_s=0.1, attempts=attempts)
    news = _News()

    def work() -> None:
        try:
            news.paths = fetch(name, folder, None, lambda file: news.begin(progress, file), patience)
        except BaseException as failure:  # noqa: BLE001 - whatever it is, it is raised where the result is waited for
            news.failure = failure

    # A daemon: what hangs in the look-up of a name cannot be ended, and must not keep this process.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
        if news.heard is not None and time.monotonic() - news.heard > give_up_s:
            news.given_up = True
            raise UserError(f"nothing has arrived for {give_up_s:.0f} s")
    if news.failure is not None:
        raise news.failure
    return news.paths
