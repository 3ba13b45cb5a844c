"""The witness sends what it observes to rank 0, gets what rank 0 shares, and ends when rank 0 hangs up."""

import os
import time
from multiprocessing import Pipe

import numpy as np
import pytest

from harness.transparent.observations import Observation
from harness.transparent.witness import NUDGES
from harness.transparent.witness_process import WitnessProcess


class Witness(WitnessProcess):
    """A witness whose end ends no process."""

    def __init__(self, line, ranks, steps):
        self.ends = []
        super().__init__(line, ranks, steps)

    def end(self, why=None):
        self.ends.append(why)

    def _end_after_rest(self):
        """Do not wait."""


@pytest.fixture
def pair():
    ours, theirs = Pipe()
    yield ours, Witness(theirs, ranks=3, steps=2)
    ours.close()


def test_it_stands_for_all_ranks(pair):
    _, witness = pair
    assert witness.is_witness
    assert witness.ranks == 3


def test_observations_reach_rank_0(pair):
    line, witness = pair
    witness.take(Observation("number", ("loss",), np.array([[1.0]])))
    assert line.recv().names == ("loss",)


def test_what_rank_0_shares_comes_in_its_order(pair):
    line, witness = pair
    line.send(("first",))
    line.send(("second",))
    assert [witness.share(None), witness.share(None)] == ["first", "second"]
    assert [line.recv(), line.recv()] == [1, 2]  # how often it has asked


def test_it_ends_when_rank_0_hangs_up(pair):
    line, witness = pair
    line.send(None)
    deadline = time.monotonic() + 5.0
    while not witness.ends and time.monotonic() < deadline:
        time.sleep(0.001)
    assert witness.ends == [None]


def test_it_ends_when_the_script_reads_what_it_may_have_trained(pair):
    _, witness = pair
    witness.reads()  # nothing has been trained: the file is as it was
    assert witness.ends == []
    witness._step = 1
    witness.reads()
    assert witness.ends == [None]


def test_the_environment_asks_for_other_roundings(monkeypatch):
    monkeypatch.setenv(NUDGES, "1")
    ours, theirs = Pipe()
    assert Witness(theirs, ranks=2, steps=2).nudges
    assert NUDGES not in os.environ
    ours.close()
