"""Small data sets come by themselves at first use: from mirrors in order, within seconds, or not at all and told."""

import dataclasses
import hashlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli import first_use, main
from harness.cli.command_sweep import sweep_command
from harness.datasets import dataset_info, known
from harness.datasets.downloads import MIRRORS, fetch_at_first_use
from tests.labs.mnist_files import write_mnist

LIMIT_S = 1.2  # of servers that bring nothing: the shorter, the sooner a test ends
FAIR_S = 6.0  # where one of several mirrors answers, on a busy machine too
PATIENT_S = 120.0  # where all that is asked for comes
HANGS_S = 300.0  # how long a server hangs


class Server(ThreadingHTTPServer):
    """Serves `files` by their names; `habit` is what it does instead of answering well."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes], habit: str = "good") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.habit = files, habit
        self.asked: list[str] = []
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.server.asked.append(name)
        getattr(self, self.server.habit)(self.server.files.get(name, b""))

    def good(self, content: bytes) -> None:
        first = int(self.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first:])

    def hangs(self, content: bytes) -> None:
        self.server.ended.wait(HANGS_S)

    def hangs_in_the_middle(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.server.ended.wait(HANGS_S)

    def trickles(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for place in range(len(content)):
            self.wfile.write(content[place : place + 1])
            if self.server.ended.wait(0.1):
                return

    def resets_once(self, content: bytes) -> None:
        if len(self.server.asked) > 1:
            self.good(content)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        time.sleep(0.05)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()  # with linger 0: a reset

    def wrong_bytes(self, content: bytes) -> None:
        self.good(content[::-1])

    def lacks_it(self, content: bytes) -> None:
        self.send_error(404)

    def asks_for_a_login(self, content: bytes) -> None:
        if self.path == "/login":
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"<!DOCTYPE html><html>who are you?</html>")
            return
        self.send_response(302)
        self.send_header("Location", "/login")
        self.end_headers()

    def shows_a_page_as_a_file(self, content: bytes) -> None:
        self.good(b"<!DOCTYPE html><html>who are you?</html>")

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client has given up, or the connection was closed on purpose
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True


BAD = (
    *("hangs", "hangs_in_the_middle", "trickles", "wrong_bytes", "lacks_it", "asks_for_a_login"),
    "shows_a_page_as_a_file",
)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server of the given files and habit."""
    servers: list[Server] = []

    def start(files: dict[str, bytes], habit: str = "good") -> Server:
        server = Server(files, habit)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.ended.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """Return the files of a tiny MNIST by name."""
    write_mnist(tmp_path / "original")
    return {path.name.replace("idx3.", "idx3-"): path.read_bytes() for path in (tmp_path / "original").iterdir()}


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], cache: Path) -> Callable[[Server], None]:
    """Return a function that lets mnist consist of `files`, published at a server; at first use they are fetched."""
    monkeypatch.setenv("HARNESS_FETCH", "1")
    monkeypatch.delenv(MIRRORS, raising=False)

    def published_at(server: Server, *mirrors: str, hashed: bool = True) -> None:
        changed = []
        for file in dataset_info("mnist").downloads:
            content = files[file.name]
            sha256 = hashlib.sha256(content).hexdigest() if hashed else None
            changed.append(
                dataclasses.replace(file, url=f"{server.url}/{file.name}", bytes=len(content), sha256=sha256)
            )
        sets = {name: dataset_info(name) for name in known.dataset_names()}
        sets["mnist"] = dataclasses.replace(sets["mnist"], downloads=tuple(changed), mirrors=mirrors)
        monkeypatch.setattr(known, "registered", lambda: sets)

    return published_at


def silent(_: object) -> Callable[[int, int | None], None]:
    return lambda done, total: None


def fetched(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "mnist").glob("*.gz")}


@pytest.mark.parametrize("habit", ["good", "resets_once"])
def test_files_come_whole(habit, files, publish, serve, tmp_path):
    publish(serve(files, habit))
    fetch_at_first_use("mnist", tmp_path / "data", silent, PATIENT_S)
    assert fetched(tmp_path / "data") == files


@pytest.mark.parametrize("habit", BAD)
def test_a_bad_server_is_given_up_in_time_and_leaves_nothing_wrong(habit, files, publish, serve, tmp_path):
    publish(serve(files, habit), hashed=habit != "shows_a_page_as_a_file")
    begin = time.monotonic()
    with pytest.raises(UserError):
        fetch_at_first_use("mnist", tmp_path / "data", silent, LIMIT_S)
    assert time.monotonic() - begin < HANGS_S / 2
    assert fetched(tmp_path / "data") == {}


@pytest.mark.parametrize("habit", BAD)
def test_the_next_mirror_is_asked(habit, files, publish, serve, tmp_path):
    first, second = serve(files, habit), serve(files)
    publish(first, second.url, hashed=habit != "shows_a_page_as_a_file")
    if habit == "trickles":  # brings something all the time: the time is over before the next one is asked
        with pytest.raises(UserError):
            fetch_at_first_use("mnist", tmp_path / "data", silent, LIMIT_S)
        return
    fetch_at_first_use("mnist", tmp_path / "data", silent, FAIR_S)
    assert fetched(tmp_path / "data") == files
    assert len(first.asked) <= 3 and len(second.asked) == len(files)  # who has failed is the last from then on


def test_own_mirrors_come_first(files, publish, serve, tmp_path, monkeypatch):
    published, lacking, own = serve(files), serve({}, "lacks_it"), serve(files)
    publish(published)
    monkeypatch.setenv(MIRRORS, f"{lacking.url}/, {own.url}")
    fetch_at_first_use("mnist", tmp_path / "data", silent, PATIENT_S)
    assert (len(lacking.asked), len(own.asked), len(published.asked)) == (1, 4, 0)


def test_a_name_server_that_does_not_answer(files, publish, serve, tmp_path, monkeypatch):
    publish(serve(files))
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(HANGS_S))
    begin = time.monotonic()
    with pytest.raises(UserError):
        fetch_at_first_use("mnist", tmp_path / "data", silent, LIMIT_S)
    assert time.monotonic() - begin < HANGS_S / 2
    over.set()


def test_what_another_command_fetches_is_waited_for(files, publish, serve, tmp_path):
    server = serve(files)
    publish(server)
    results: list[object] = []

    def one() -> None:
        results.append(fetch_at_first_use("mnist", tmp_path / "data", silent, PATIENT_S))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and fetched(tmp_path / "data") == files and len(server.asked) == len(files)


PLAN = ("--dataset", "mnist", "--nodes", "1", "--dry-run")


def planned(tmp_path: Path, *more: str) -> str:
    words = [*PLAN, "--results", str(tmp_path / "results"), *more]
    return CliRunner().invoke(sweep_command, words, catch_exceptions=False).output


def test_a_sweep_fetches_once_and_says_once_what_it_trains_on(files, publish, serve, tmp_path):
    server = serve(files)
    publish(server)
    first, second = planned(tmp_path), planned(tmp_path)
    assert fetched(tmp_path / "cache" / "mpi-tf-harness" / "data") == files and len(server.asked) == len(files)
    for said in (first, second):
        assert said.count("data: mnist, real") == 1 and "SYNTHETIC" not in said
    assert "fetched" in first and "fetched" not in second


def test_without_a_network_the_stand_in_is_used_and_said_once(files, publish, serve, tmp_path):
    publish(serve(files, "lacks_it"))
    said = planned(tmp_path)
    assert "404" in said and said.count("synthetic samples are used") == said.count("SYNTHETIC DATA") == 1


@pytest.mark.parametrize(
    "job",
    ["SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID", "LSB_JOBID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"],
)
def test_nothing_is_fetched_in_a_job_or_by_a_rank(job, files, publish, serve, tmp_path, monkeypatch):
    server = serve(files)
    publish(server)
    monkeypatch.setenv(job, "1")
    first_use.fetch_small_set("mnist", None)
    assert server.asked == []


def test_nothing_is_fetched_where_it_is_declined_or_a_folder_is_named(files, publish, serve, tmp_path, monkeypatch):
    server = serve(files)
    publish(server)
    (tmp_path / "mine").mkdir()
    assert "SYNTHETIC DATA" in planned(tmp_path, "--data-dir", str(tmp_path / "mine"))
    assert "SYNTHETIC DATA" not in planned(tmp_path, "--data-kind", "synthetic")
    monkeypatch.setenv(first_use.SWITCH, "0")
    assert "SYNTHETIC DATA" in planned(tmp_path)
    assert server.asked == []
    monkeypatch.setenv(first_use.SWITCH, "never")
    with pytest.raises(UserError, match="HARNESS_FETCH=never"):
        planned(tmp_path)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["sweep", "--dataset", "mnist", "--scaling", "weak"], "--samples"),
        (["paper", "--workloads", "mnist-dnn", "--preset", "papper"], "papper"),
        (["paper", "--workloads", "mnist-dnn", "--repeats", "100000000"], "100000000"),
        (["claims", "--run", "--scheduler", "nowhere"], "nowhere"),
        (["compare", "here", "sync=never", "--dataset", "mnist"], "never"),
        (["compare", "here", "env:A=1", "--dataset", "mnist", "--nodes", "8..1"], "8..1"),
        (["compare", "here", "commit:nowhere", "--dataset", "mnist"], "nowhere"),
        (["policies", "sync=gradients", "sync=never", "--dataset", "mnist"], "never"),
    ],
)
def test_what_is_wrong_is_refused_before_a_download(words, value, files, publish, serve, tmp_path, monkeypatch):
    server = serve(files)
    publish(server)
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(main, words)
    assert isinstance(ended.exception, UserError) and value in str(ended.exception), ended.output
    assert server.asked == []


def test_large_sets_keep_their_command():
    assert {name for name in known.dataset_names() if not dataset_info(name).small} == {"higgs", "imagenet"}
    assert all(
        sum(file.bytes or 0 for file in dataset_info(name).downloads) < 200e6
        for name in known.dataset_names()
        if dataset_info(name).small
    )
