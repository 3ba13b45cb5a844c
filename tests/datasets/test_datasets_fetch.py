"""Fetch against a local server: hashes, pins, broken transfers that go on, and refusals in one sentence."""

import dataclasses
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.datasets import dataset_info, downloads
from harness.datasets.dataset import Download
from harness.datasets.downloads import Patience, ResumingDownloader, TransferError, fetch
from tests.labs.sentences import refuses

CONTENT = bytes(range(256)) * 40


class Mirror(ThreadingHTTPServer):
    """A file server whose transfers break: `breaks` has the bytes after which each next answer ends."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/a.bin": CONTENT}
        self.breaks: list[int] = []
        self.ranges: list[str | None] = []
        self.honours_range = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if content is None:
            self.send_error(404)
            return
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.honours_range else 0
        if first >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        end = first + self.server.breaks.pop(0) if self.server.breaks else len(content)
        self.wfile.write(content[first:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = Mirror()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def published(monkeypatch):
    """Return a function that makes data set mnist consist of one file `a.bin` with the given hash."""

    def publish(sha256: str | None) -> None:
        file = Download(url="http://127.0.0.1:9/never/a.bin", bytes=len(CONTENT), sha256=sha256)
        facts = dataclasses.replace(dataset_info("mnist"), downloads=(file,))
        monkeypatch.setattr(downloads, "dataset_info", lambda name: facts)

    return publish


def get(folder: Path, mirror: Mirror, seen: list[tuple[int, int | None]] | None = None) -> Path:
    def progress(_: Download):
        return lambda done, total: None if seen is None else seen.append((done, total))

    (path,) = fetch("mnist", folder, mirror.url, progress, Patience(pause_s=0))
    return path


def test_whole_file_once(tmp_path, mirror, published):
    published(hashlib.sha256(CONTENT).hexdigest())
    seen: list[tuple[int, int | None]] = []
    path = get(tmp_path, mirror, seen)
    assert path == tmp_path / "mnist" / "a.bin" and path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    get(tmp_path, mirror)
    assert mirror.ranges == [None]
    assert sorted(file.name for file in path.parent.iterdir()) == [".lock", "a.bin"]


def test_broken_transfer_goes_on_in_the_same_call(tmp_path, mirror, published):
    published(hashlib.sha256(CONTENT).hexdigest())
    mirror.breaks = [1000, 500]
    assert get(tmp_path, mirror).read_bytes() == CONTENT
    assert mirror.ranges == [None, "bytes=1000-", "bytes=1500-"]


def test_broken_transfer_goes_on_in_the_next_call(tmp_path, mirror, published):
    published(hashlib.sha256(CONTENT).hexdigest())
    mirror.breaks = [1000, 0, 0, 0]
    with refuses("are kept, the same", "1,000"):
        get(tmp_path, mirror)
    assert not (tmp_path / "mnist" / "a.bin").exists()
    mirror.breaks = []
    assert get(tmp_path, mirror).read_bytes() == CONTENT
    assert mirror.ranges[-1] == "bytes=1000-"


def test_server_without_range_starts_anew(tmp_path, mirror, published):
    published(hashlib.sha256(CONTENT).hexdigest())
    mirror.honours_range = False
    mirror.breaks = [1000]
    assert get(tmp_path, mirror).read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"older and longer"])
def test_part_that_is_whole_or_too_long(tmp_path, mirror, published, part):
    published(hashlib.sha256(CONTENT).hexdigest())
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a.bin.part").write_bytes(part)
    assert get(tmp_path, mirror).read_bytes() == CONTENT


def test_wrong_hash_is_removed(tmp_path, mirror, published):
    published("0" * 64)
    with refuses("came does not have", "256", "000"):
        get(tmp_path, mirror)
    assert [file.name for file in (tmp_path / "mnist").iterdir()] == [".lock"]


def test_part_of_another_file_is_found_out_and_then_fetched_anew(tmp_path, mirror, published):
    published(hashlib.sha256(CONTENT).hexdigest())
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a.bin.part").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="SHA-256"):
        get(tmp_path, mirror)
    assert get(tmp_path, mirror).read_bytes() == CONTENT


def test_unpublished_hash_is_pinned_and_then_checked(tmp_path, mirror, published):
    published(None)
    path = get(tmp_path, mirror)
    pin = path.with_name("a.bin.sha256")
    assert pin.read_text() == f"{hashlib.sha256(CONTENT).hexdigest()}  a.bin\n"
    path.unlink()
    mirror.files["/a.bin"] = CONTENT[::-1]
    with refuses("came does not have", "256"):
        get(tmp_path, mirror)
    assert not path.exists()
    pin.write_text("nonsense")
    with refuses("delete it to pin", "256"):
        get(tmp_path, mirror)


def test_another_file_of_that_name_is_left_as_it_is(tmp_path, mirror, published):
    published(hashlib.sha256(CONTENT).hexdigest())
    path = get(tmp_path, mirror)
    path.write_bytes(CONTENT[:-1])
    with refuses(path, "is not the original"):
        get(tmp_path, mirror)
    assert path.read_bytes() == CONTENT[:-1]
    path.rename(tmp_path / "mine")
    assert get(tmp_path, mirror).read_bytes() == CONTENT


def test_absent_file_and_absent_server(tmp_path, mirror, published):
    published(None)
    mirror.files.clear()
    with refuses("the network, or name", "a.bin", "404", "HARNESS_MIRROR"):
        get(tmp_path, mirror)
    downloader = ResumingDownloader(
        part=tmp_path / "part", progress=lambda done, total: None, patience=Patience(pause_s=0)
    )
    with refuses("connection refused", error=TransferError):
        downloader("http://127.0.0.1:9/a", str(tmp_path / "a"), None)


def test_folder_that_cannot_be_made(tmp_path, mirror, published):
    published(None)
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with refuses("cannot be written"):
            get(place, mirror)
