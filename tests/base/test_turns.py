"""What a referee and the ranks of a turn block tell each other."""

import socket
import struct
import subprocess
import sys

from harness.base.turns import Greeting, TimedSteps, TurnOrder, TurnReport


def test_messages_come_back_as_they_were() -> None:
    greeting = Greeting(password="word", rank=1, ranks=2, cores="0,1")
    order = TurnOrder(turn=3, steps=20, paused_s=1.5, cores="1")
    report = TurnReport(last=True, timed=TimedSteps(steps=20, seconds=0.05, cores_had=0.99), core_ns=80.0, cores="1")
    assert Greeting.parse(greeting.line()) == greeting
    assert TurnOrder.parse(order.line()) == order
    assert TurnReport.parse(report.line()) == report


def test_a_stranger_on_the_network_is_no_rank() -> None:
    assert [Greeting.parse(line) for line in ("", "GET / HTTP/1.1", "rank word first of all")] == [None] * 3


def test_a_referee_that_has_gone_gives_no_order() -> None:
    assert TurnOrder.parse("") is None


RANK = """
import socket, sys
from harness.base.turns import Turns

opened = []
connect = socket.create_connection

def connect_and_note(*address, **options):
    opened.append(connect(*address, **options))
    return opened[-1]

socket.create_connection = connect_and_note
turns = Turns(sys.argv[1], 0, 1)
assert opened[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
print("waits", flush=True)
turns.wait()
"""


def test_a_rank_ends_with_its_connection_however_that_breaks_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [sys.executable, "-c", RANK, f"127.0.0.1:{server.getsockname()[1]}:word"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as rank:
            assert rank.stdout is not None and rank.stderr is not None
            rank.stdout.readline()
            connection, _ = server.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()  # a reset, as after a timeout: no end of file
            assert rank.wait(120) == 1
            assert rank.stderr.read() == b""
