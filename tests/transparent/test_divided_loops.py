"""Loops over a data set: the first batch comes whole, later ones are of the trial and then divided."""

import numpy as np
import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.transparent.collectives import Scalars
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.divided_loops import Loops, LoopTrial, _refuse_idle
from harness.transparent.training_states import TrainingEvent, TrainingState
from tests.labs.alike_ranks import alike_runtime


class Script:
    """A script's loop on one of two ranks: batches of 4 rows, of which `take` yields the next as the rank gets it."""

    def __init__(self, rank=1, **settings):
        self.runtime = alike_runtime(rank, **{"batch": "global", **settings})
        self.loops = Loops(self.runtime, Scalars(self.runtime.collectives))
        self.dataset = tf.data.Dataset.range(40).batch(4)
        self.lines = (("train.py", 3),)
        self.begin()

    def begin(self):
        self.iterator = iter(self.dataset)
        self.iterator._harness_loop = self.loops._begin_loop(self.dataset, self.lines)

    @property
    def loop(self):
        return self.iterator._harness_loop

    def take(self):
        return self.loops._next(type(self.iterator).__next__, self.iterator).numpy().tolist()

    def train(self):
        """Make a step of a compiled function that is known to be divisible."""
        self.runtime.count_step()


def test_a_loop_that_does_not_train_gets_whole_batches():
    script = Script()
    assert [script.take() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert not script.loop.trains


def test_a_loop_is_divided_from_its_second_batch_on():
    script = Script()
    assert script.take() == [0, 1, 2, 3]
    script.train()
    assert script.take() == [6, 7]
    assert script.loop.is_divided
    assert script.runtime.divided == 1


def test_the_same_lines_over_the_same_data_are_divided_from_the_first_batch_on():
    script = Script()
    for _ in range(2):
        script.take()
        script.train()
    script.begin()
    assert script.take() == [2, 3]


def test_a_batch_per_rank_is_made_of_as_many_of_the_scripts_batches():
    script = Script(batch="per-rank")
    script.take()
    script.train()
    assert script.take() == [8, 9, 10, 11]


def test_what_is_made_meanwhile_is_observed_with_a_whole_batch():
    script = Script()
    script.take()
    script.train()
    script.take()
    script.runtime.generation += 1  # another model, say
    assert script.take() == [8, 9, 10, 11]


def test_rows_of_a_ranks_own_are_not_divided():
    script = Script()
    script.runtime.own_rows.present = True
    assert script.take() == [0, 1, 2, 3]
    assert not script.loop.is_divided


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loop_that_takes_gradients_itself_has_a_trial(rank):
    script = Script(rank)
    variable = tf.Variable(1.0)
    script.take()
    script.runtime.count_step(variable)
    rows = [4, 5, 6, 7]
    assert script.take() == (rows + rows if rank else rows)  # every row twice where the step does not count
    assert script.runtime.collectives.trial.goes_on
    script.loops.end_trial()
    assert not script.runtime.collectives.trial.goes_on


def test_a_line_that_trains_no_more_is_refused_at_its_second_part():
    loop = DatasetLoop(dataset=None, lines=())
    _refuse_idle(loop, 5)
    assert loop.first_part_steps == 5
    _refuse_idle(loop, 6)
    with pytest.raises(UserError):
        _refuse_idle(loop, 5)


def test_numbers_that_the_script_takes_out_are_weighted_by_rows():
    script = Script()
    loop = DatasetLoop(dataset=None, lines=())
    gathered = [(1.0, 1.0), (4.0, 2.0)]
    script.runtime.collectives.gather = lambda value, label: gathered
    agreed = script.loops._agreed(np.float32(4.0), loop, ("train.py", 4))
    assert agreed == 3.0
    assert agreed.dtype == np.float32
    assert script.loops._agreed(np.bool_(False), loop, ("train.py", 5)) is np.bool_(True)  # rank 0's


def test_a_trial_goes_from_state_to_state():
    trial = LoopTrial()
    assert trial.state is TrainingState.UNKNOWN
    trial.note(TrainingEvent.TRAINED)
    trial.note(TrainingEvent.INDEPENDENT)
    assert trial.state is TrainingState.DIVIDED
