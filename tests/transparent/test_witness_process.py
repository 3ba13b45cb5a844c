"""The witness sends what it observes to rank 0, gets what rank 0 shares, and ends when rank 0 hangs up."""

import os
from multiprocessing import Pipe

import numpy as np
import pytest

from harness.transparent.observations import Observation
from harness.transparent.witness import NUDGES
from harness.transparent.witness_process import WitnessProcess


@pytest.fixture
def ended(monkeypatch):
    """The witness ends no process of the tests'."""
    ends = []
    monkeypatch.setattr(WitnessProcess, "end", lambda witness, why="": ends.append(why))
    monkeypatch.setattr(WitnessProcess, "_end_after_rest", lambda witness: None)
    return ends


@pytest.fixture
def pair(ended):
    ours, theirs = Pipe()
    yield ours, WitnessProcess(theirs, ranks=3, steps=2)
    ours.close()


def test_it_stands_for_all_ranks(pair):
    _, witness = pair
    assert witness.is_witness
    assert witness.ranks == 3
    assert not witness.over or not witness._trainings


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


def test_it_ends_when_rank_0_hangs_up(pair, ended):
    line, witness = pair
    line.send(None)
    line.close()
    for _ in range(200):
        if ended:
            break
        os.sched_yield()
    witness.reads()  # nothing has been trained: the file is as it was
    assert len(ended) <= 1


def test_it_ends_when_the_script_reads_what_it_may_have_trained(pair, ended):
    _, witness = pair
    witness._step = 1
    witness.reads()
    assert ended == [""]


def test_the_environment_asks_for_other_roundings(ended, monkeypatch):
    monkeypatch.setenv(NUDGES, "1")
    ours, theirs = Pipe()
    assert WitnessProcess(theirs, ranks=2, steps=2).nudges
    assert NUDGES not in os.environ
    ours.close()
