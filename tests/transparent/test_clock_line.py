"""Threads of ranks and the witness are shown rank 0's clocks."""

import threading
import time
from datetime import UTC, datetime

import pytest

from harness.comm.world import World
from harness.transparent.clocks import AgreedClocks, clock_line
from harness.transparent.clocks.clock_line import ClockSource, hear

PLACE = ("train.py", 7, "perf_counter")


def in_thread(action, name="Thread-1 (work)"):
    """Return what `action` returns in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(action()), name=name)
    thread.start()
    thread.join()
    return results[0]


@pytest.fixture
def watched():
    return [True]


@pytest.fixture
def source(watched):
    return ClockSource(lambda: watched[0])


def test_a_thread_reads_what_rank_0s_threads_of_its_name_have_read(source):
    """In their order, whatever numbers Python has given them."""
    rank = hear(source.address, is_witness=False)
    for value, name in ((1.0, "Thread-1 (work)"), (2.0, "Thread-5 (work)"), (3.0, "Thread-6 (other)")):
        in_thread(lambda value=value: source.agreed(value, PLACE), name)
    assert in_thread(lambda: rank.agreed(9.0, PLACE), "Thread-2 (other)") == 3.0
    assert in_thread(lambda: rank.agreed(9.0, PLACE), "Thread-3 (work)") == 1.0
    assert in_thread(lambda: rank.agreed(9.0, PLACE), "Thread-4 (work)") == 2.0


def test_a_witness_that_comes_late_hears_the_main_thread_from_the_beginning(source, watched, monkeypatch):
    values = [source.agreed(value, PLACE) for value in (1.0, 2.0)]
    witness = hear(source.address, is_witness=True)
    assert [witness.agreed(9.0, PLACE) for _ in values] == values
    watched[0] = False  # from now on only threads of ranks hear
    source.agreed(3.0, PLACE)
    assert in_thread(lambda: source.agreed(4.0, PLACE)) == 4.0
    assert in_thread(lambda: witness.agreed(9.0, PLACE)) == 4.0
    monkeypatch.setattr(clock_line, "WITNESS_PATIENCE_S", 0.05)
    assert witness.agreed(9.0, PLACE) == 9.0  # the reading of the main thread has not been sent


def test_what_rank_0_does_not_read_is_read_here_after_some_patience_once(source, monkeypatch):
    monkeypatch.setattr(clock_line, "WATCHED_PATIENCE_S", 0.05)
    rank = hear(source.address, is_witness=False)
    assert in_thread(lambda: rank.agreed(9.0, PLACE)) == 9.0
    monkeypatch.setattr(clock_line, "WATCHED_PATIENCE_S", 60.0)
    assert in_thread(lambda: rank.agreed(9.0, PLACE)) == 9.0


def test_from_another_host_rank_0_is_not_heard(source):
    assert hear(clock_line.Address(name="\0harness-clocks-nobody", secret=b"a"), is_witness=False) is None


def test_the_clocks_of_a_script_are_rank_0s_in_its_threads_and_in_the_witness(source):
    """A learning rate that follows them is the same everywhere."""
    code = compile(
        "date, ticks = datetime.now(UTC), []\nwork(lambda: ticks.append(time.perf_counter_ns()))",
        "/home/me/train.py",
        "exec",
    )
    readings = []
    for line in (source, hear(source.address, is_witness=True)):
        clocks = AgreedClocks(World(comm=None, rank=0, size=1))
        clocks.line = line
        clocks.install()
        try:
            names = {"datetime": datetime, "UTC": UTC, "work": in_thread, "time": time}
            exec(code, names)
        finally:
            clocks.put_back()
        readings.append((names["date"], names["ticks"]))
    assert readings[0] == readings[1]
