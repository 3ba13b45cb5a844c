"""Rank 0 compares what it observes with what the witness sends, and ends the ranks at a difference."""

import threading
from multiprocessing import Pipe

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.schema.record_notes import NoteCode
from harness.transparent import observed_rank
from harness.transparent.observations import Observation
from harness.transparent.observed_rank import ObservedRank
from tests.labs.alike_ranks import alike_runtime


def observation(value, *, rows=8.0, kind="gradient", name="kernel"):
    return Observation(kind, (name,), np.full((1, 5), value), rows=rows)


class Launch:
    """Rank 0 of a launch: `witnesses` are the other ends of the lines to its witnesses."""

    def __init__(self, monkeypatch, patience_s=0.3):
        self.errors = []
        self.witnesses = []
        self.runtime = alike_runtime()
        monkeypatch.setattr(observed_rank, "abort", self._abort)
        self.rank = ObservedRank(self.runtime.world, self._spawn, 3, patience_s)
        self.rank.install(self.runtime)

    def _spawn(self, name, **switches):
        ours, theirs = Pipe()
        self.witnesses.append(theirs)
        if name == "witness-again":
            theirs.send(self.again)
        return ours

    def _abort(self, world, error):
        self.errors.append(error)
        raise error

    def send(self, message):
        self.witnesses[0].send(message)


@pytest.fixture
def launch(monkeypatch):
    launch = Launch(monkeypatch)
    yield launch
    for line in launch.witnesses:
        line.close()


def codes(launch):
    return [note.code for note in launch.runtime.notes]


def test_equal_observations_agree(launch):
    launch.send(observation(1.0))
    launch.rank.take(observation(1.0 + 1e-6))
    assert launch.rank._agreed == 1
    assert not launch.errors


def test_a_difference_beyond_rounding_ends_all_ranks(launch):
    launch.again = observation(1.0)
    launch.send(observation(1.0))
    with pytest.raises(UserError):
        launch.rank.take(observation(2.0))
    assert len(launch.errors) == 1
    assert len(launch.witnesses) == 2  # another that rounds otherwise


def test_a_script_that_magnifies_rounding_is_not_judged(launch):
    launch.again = observation(1.5)
    launch.send(observation(1.0))
    launch.rank.take(observation(1.4))
    assert launch.rank.over
    assert not launch.errors
    assert codes(launch) == [NoteCode.WITNESS_SAW_NOTHING, NoteCode.ROUNDING_MAGNIFIED]


def test_rows_that_are_lost_end_all_ranks(launch):
    launch.send(observation(1.0, rows=8.0))
    with pytest.raises(UserError):
        launch.rank.take(observation(1.0, rows=7.0))


def test_a_witness_that_is_late_or_gone_is_given_up(launch):
    launch.send(observation(1.0))
    launch.rank.take(observation(1.0))
    launch.rank.take(observation(1.0))
    assert launch.rank.over
    assert codes(launch) == [NoteCode.WITNESS_AGREED, NoteCode.WITNESS_BEHIND]
    assert launch.runtime.notes[0].values["steps"] == 1


def test_a_witness_that_hangs_up_is_given_up_at_once(monkeypatch):
    launch = Launch(monkeypatch, patience_s=60.0)
    launch.witnesses[0].close()
    launch.rank.take(observation(1.0))
    assert launch.rank.over
    assert codes(launch) == [NoteCode.WITNESS_SAW_NOTHING]


def test_where_every_rank_reads_rows_of_its_own_nothing_is_judged(launch):
    launch.runtime.own_rows.present = True
    launch.rank.take(observation(1.0))
    assert codes(launch) == [NoteCode.ROWS_OF_EACH_RANK]


def test_half_precision_may_differ_further(launch):
    gradient = observation(1.0)
    allowed = launch.rank._allowed_gap(gradient)
    launch.rank.coarse = True
    assert launch.rank._allowed_gap(gradient) > allowed
    assert launch.rank._allowed_gap(observation(1.0, kind="number")) > allowed


def test_values_are_shared_with_the_witness_until_it_ends(launch):
    assert launch.rank.share({"seed": 7}) == {"seed": 7}
    assert launch.witnesses[0].recv() == ({"seed": 7},)
    launch.rank.end()
    assert launch.witnesses[0].recv() is None
    launch.rank.share("later")
    assert not launch.witnesses[0].poll()


def test_the_witness_says_that_it_has_files_of_its_own(launch):
    waiting = threading.Timer(0.02, launch.send, ["ready"])
    waiting.start()
    launch.rank.await_own_files()
    assert launch.rank._has_own_files
