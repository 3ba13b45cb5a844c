"""Whatever strangers send to a referee, its ranks are listened to and its block goes on."""

import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from harness.base.turns import LONGEST_LINE, READY, Greeting, TimedSteps, TurnReport
from harness.sweep.referee import RankConnection, RankConnections, run_block
from harness.sweep.turn_block import TurnBlock
from tests.sweep.test_turns import rank_set

LOCAL = "127.0.0.1"
QUIET_S = 0.5  # in which nobody is to say anything
GREETING = Greeting(password="", rank=0, ranks=1, cores="0")
REPORT = TurnReport(last=False, timed=TimedSteps(steps=3, seconds=0.1, cores_had=1.0), core_ns=1.0, cores="0")


@pytest.fixture
def connections() -> Iterator[RankConnections]:
    server = RankConnections(LOCAL, 2)
    yield server
    server.close_all()


def address(server: RankConnections, number: int = 0) -> tuple[int, str]:
    """Return the port and the password of a set."""
    _, port, password = server.address(number).split(":")
    return int(port), password


def connect(server: RankConnections, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection((LOCAL, address(server)[0]), timeout=60)
    client.sendall(sent)
    return client


def greet(server: RankConnections, number: int = 0) -> socket.socket:
    """Connect as rank 0 of a set."""
    line = GREETING._replace(password=address(server, number)[1]).line()
    return connect(server, f"{line}\n{READY}\n".encode())


def listen(server: RankConnections, seconds: float = 60.0) -> list[RankConnection]:
    """Return who has said something, as soon as somebody has, within some time."""
    said: list[RankConnection] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not said:
        said += server.listen(0.05)
    return said


def is_closed(client: socket.socket) -> bool:
    """Return whether the other end has closed a connection."""
    client.settimeout(60)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\n",
        b"\0\xff\xfe\n",
        b"rank\n",
        b"rank wrong 0 1 0\n",
        b"rank wrong " + b"1" * 5000 + b" 1 c\n",
        b"rank PASSWORD " + b"1" * 5000 + b" 1 c\n",
        "rank PASSWORD ² 1 c\n".encode(),
        b"rank PASSWORD 0 1\n",
        b"x" * (LONGEST_LINE + 1),
        b"ready\n" * 1000,
    ],
)
def test_a_stranger_is_closed_and_a_rank_is_heard(connections: RankConnections, sent: bytes) -> None:
    password = address(connections)[1].encode()
    with closing(connect(connections, sent.replace(b"PASSWORD", password))) as stranger:
        assert listen(connections, QUIET_S) == []
        assert is_closed(stranger)
        with closing(greet(connections, 1)):
            (rank,) = listen(connections)
    assert (rank.set_number, rank.greeting and rank.greeting.rank, rank.lines) == (1, 0, [READY])


def test_endless_text_without_a_line_takes_no_memory(connections: RankConnections) -> None:
    stranger = connect(connections)

    def pour() -> None:
        try:
            for _ in range(500):
                stranger.sendall(b"x" * 100_000)
        except OSError:
            stranger.close()

    before = psutil.Process().memory_info().rss
    pouring = threading.Thread(target=pour)
    pouring.start()
    assert listen(connections, 2.0) == []
    pouring.join(60)
    assert not pouring.is_alive()
    assert psutil.Process().memory_info().rss - before < 20 * 2**20


def test_a_connection_that_is_reset_at_once_ends_nothing(connections: RankConnections) -> None:
    for _ in range(20):
        client = connect(connections)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert listen(connections, QUIET_S) == []
    with closing(greet(connections)):
        assert len(listen(connections)) == 1


def test_without_a_descriptor_for_one_more_the_oldest_stranger_goes(connections: RankConnections) -> None:
    strangers = [connect(connections) for _ in range(30)]
    rank = greet(connections)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, hard))
    try:
        assert len(listen(connections)) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for client in (rank, *strangers):
        client.close()


def test_strangers_that_say_nothing_are_not_kept_without_end(connections: RankConnections) -> None:
    strangers = []
    for _ in range(300):
        strangers.append(connect(connections))
        connections.listen(0.05)
    assert all(is_closed(client) for client in strangers[: 300 - 256])
    for client in strangers:
        client.close()


@pytest.mark.parametrize("line", [b"done 1 2\n", b"done x 0.1 1 1 0\n", b"done 1 0.1 x 1 0\n", b"\xff\n"])
def test_a_rank_that_sends_what_is_no_report_is_closed(connections: RankConnections, line: bytes) -> None:
    with closing(greet(connections)) as client:
        (rank,) = listen(connections)
        client.sendall(f"{REPORT.line()}\n".encode())
        assert listen(connections) == [rank]
        client.sendall(line)
        assert listen(connections, QUIET_S) == []
        assert is_closed(client)
        assert rank.lines == [READY, REPORT.line()]


def test_both_ends_notice_that_the_others_host_has_died(connections: RankConnections) -> None:
    with closing(greet(connections)):
        (rank,) = listen(connections)
        assert rank.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def attack(port: int, ends: threading.Event) -> None:
    """Do all of this to a port, again and again."""
    kinds: list[Callable[[socket.socket], object]] = [
        lambda client: client.sendall(b"rank x " + b"1" * 5000 + b" 1 c\n"),
        lambda client: client.sendall(b"x" * 10**6),
        lambda client: client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
        lambda client: None,
    ]
    while not ends.is_set():
        for kind in kinds:
            try:
                with closing(socket.create_connection((LOCAL, port), timeout=1)) as client:
                    kind(client)
            except OSError:
                continue


def test_a_block_under_attack_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    threads: list[threading.Thread] = []
    make = RankConnections.__init__

    def watched(self: RankConnections, host: str, sets: int) -> None:
        make(self, host, sets)
        threads.append(threading.Thread(target=attack, args=(address(self)[0], ends)))
        threads[-1].start()

    monkeypatch.setattr(RankConnections, "__init__", watched)
    try:
        end = run_block(TurnBlock(name="b", launches=(rank_set("one", tmp_path), rank_set("two", tmp_path, ranks=2))))
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert end.codes == {"one": 0, "two": 0}
    assert len(end.turns) > 4


def test_a_set_that_a_signal_ends_has_128_and_its_number(tmp_path: Path) -> None:
    killed = rank_set("killed", tmp_path, program="import os; os.kill(os.getppid(), 9)")
    end = run_block(TurnBlock(name="b", launches=(rank_set("one", tmp_path / "..", steps=50), killed), seconds=1.0))
    assert end.codes["killed"] == 137
