"""What a script asks of its surroundings is what one process is told: clocks, signals, launchers' variables."""

import os
import pickle
import signal
import sys
import time
import timeit
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from harness.comm.world import World
from harness.transparent.clocks import AgreedClocks, AgreedSignals, RankVariables, agreed_signals

PLACE = ("train.py", 7, "monotonic")


class Mail:
    """Messages from rank 0 to rank 1, in order."""

    def __init__(self):
        self.messages = []

    def isend(self, message, dest, tag):
        self.messages.append(message)
        return SimpleNamespace(Test=lambda: True)

    def iprobe(self, source, tag):
        return bool(self.messages)

    def recv(self, source, tag):
        return self.messages.pop(0)


@pytest.fixture
def clocks():
    mail, step = Mail(), [0, 0]
    pair = [AgreedClocks(World(comm=mail, rank=rank, size=2)) for rank in range(2)]
    for rank, agreed in enumerate(pair):
        agreed.steps = lambda rank=rank: step[rank]
        now = iter(range(100_000))
        agreed.now = lambda now=now: next(now) * 1e-3
    return *pair, step


def test_a_clock_says_on_all_ranks_what_rank_0_has_read(clocks):
    first, second, step = clocks
    for step[0] in range(3):
        assert [first.agreed(10.0 + step[0] + part, PLACE) for part in (0.0, 0.5)] == [10.0 + step[0], 10.5 + step[0]]
    for step[1] in range(3):
        assert [second.agreed(99.0, PLACE) for _ in range(2)] == [10.0 + step[1], 10.5 + step[1]]


def test_a_rank_that_asks_where_rank_0_has_not_reads_its_own_clock(clocks):
    """At once where rank 0 is in a later step, after some patience where nobody knows; the next step agrees again."""
    first, second, step = clocks
    assert second.agreed(99.0, PLACE) == 99.0
    step[:] = 1, 1
    first.agreed(11.0, PLACE)
    assert second.agreed(99.0, PLACE) == 11.0
    step[0] = 2
    first.agreed(12.0, PLACE)
    assert second.agreed(98.0, ("train.py", 8, "time")) == 98.0
    step[1] = 2
    assert second.agreed(99.0, PLACE) == 12.0


def test_dates_too_are_what_rank_0_has_read(clocks):
    """Also those of `from datetime import datetime` and `timeit`; afterwards they are what they were."""
    first, second, _ = clocks
    code = compile("date, tick = datetime.now(UTC), timeit.default_timer()", "/home/me/train.py", "exec")
    readings = []
    for rank_clocks in (first, second):
        names = {"datetime": datetime, "UTC": UTC, "timeit": timeit}
        rank_clocks.install()
        try:
            exec(code, names)
        finally:
            rank_clocks.put_back()
        readings.append((names["date"], names["tick"]))
    assert readings[0] == readings[1]
    assert pickle.loads(pickle.dumps(readings[0][0])) == readings[0][0]
    assert datetime.now(UTC) > readings[0][0]
    assert timeit.default_timer is time.perf_counter


@pytest.fixture
def signals(monkeypatch):
    """Give the signals of a rank whose script handles SIGUSR1; `signals.handled` is what its handler has been given."""
    monkeypatch.setattr(agreed_signals, "time", SimpleNamespace(monotonic=lambda: 7.0))
    monkeypatch.setattr(signal, "getsignal", signal.getsignal)  # both are put back after the test
    put_handler, replaced_handler = signal.signal, signal.getsignal(signal.SIGUSR1)
    monkeypatch.setattr(signal, "signal", put_handler)
    signals = AgreedSignals()
    signals.handled = []
    signals.install()
    signal.signal(signal.SIGUSR1, lambda number, frame: signals.handled.append(number))
    yield signals
    put_handler(signal.SIGUSR1, replaced_handler)


def test_a_signal_that_reaches_this_rank_has_its_handler_run_when_the_ranks_meet(signals):
    gathered = []

    def gather(value, label):
        gathered.append(value)
        return [value, []]

    signals.gather, signals.trains = gather, lambda: True
    signals.meet()
    signal.raise_signal(signal.SIGUSR1)
    assert signals.handled == []
    signals.meet()
    signals.meet()
    assert signals.handled == [signal.SIGUSR1]
    assert gathered == [[], [signal.SIGUSR1], []]


def test_a_signal_that_reaches_another_rank_has_the_handler_run_here_once(signals):
    rank_numbers = [[], []]
    signals.gather, signals.trains = lambda value, label: [value, rank_numbers.pop(0)], lambda: True
    rank_numbers.insert(0, [signal.SIGUSR1])
    signals.meet()
    assert signals.handled == [signal.SIGUSR1]
    signal.raise_signal(signal.SIGUSR1)  # the same signal, which the launcher sends to all, comes late
    signals.meet()
    assert signals.handled == [signal.SIGUSR1]


def test_before_anything_trains_a_handler_runs_at_once(signals):
    signal.raise_signal(signal.SIGUSR1)
    assert signals.handled == [signal.SIGUSR1]


def test_every_rank_is_told_that_it_is_the_only_one(monkeypatch):
    ended = []
    mpi = SimpleNamespace(
        COMM_WORLD="all ranks",
        COMM_SELF="this one",
        Finalize=lambda: ended.append(True),
        Is_finalized=lambda: bool(ended),
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("HARNESS_RANKS", "")
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    variables = RankVariables()
    variables.hide(4)
    assert (os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]) == ("0", "1")
    assert "SLURM_PROCID" not in os.environ
    assert mpi.COMM_WORLD == "this one"
    assert not mpi.Is_finalized()
    mpi.Finalize()
    assert mpi.Is_finalized()
    assert not ended  # the ranks still need it
    variables.show()
    mpi.Finalize()
    assert ended
    assert os.environ["OMPI_COMM_WORLD_RANK"] == "3"
    assert mpi.COMM_WORLD == "all ranks"
