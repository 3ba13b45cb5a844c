"""What a loop takes out of TensorFlow: numbers of all ranks' rows, and whole batches for a loop that takes rows."""

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.patch import Refused, put_back
from harness.transparent.taken_values import TakenValues, is_library
from harness.transparent.witness import measures
from tests.labs.alike_ranks import alike_runtime

BATCH = tf.reshape(tf.range(8.0), [4, 2])


class Observer:
    """A witness that keeps the numbers that it is shown."""

    is_witness = False

    def __init__(self):
        self.seen = []

    def numbers(self, place, value):
        self.seen.append(value)


@pytest.fixture(autouse=True)
def replacements():
    yield
    put_back()


def script(**of_loop):
    """Return a runtime whose loop has taken a whole batch, with the values replaced that this file takes."""
    runtime = alike_runtime(1, batch="global")
    runtime.loop = DatasetLoop(dataset=None, lines=(), **{"batch": BATCH, **of_loop})
    runtime.rows.present_rows = 4
    runtime.witness = Observer()
    runtime.taken_values = TakenValues(runtime)
    runtime.taken_values.install()
    return runtime


@pytest.mark.parametrize(
    "take",
    [
        len,
        list,
        lambda rows: rows.numpy(),
        lambda rows: rows[:, 0].numpy(),
        lambda rows: rows.shape[0],
        lambda rows: rows.shape[-2],
        lambda rows: rows.shape[:1],
        lambda rows: rows.shape.as_list(),
        lambda rows: [*rows.shape],
        lambda rows: f"{rows.shape}",
        lambda rows: np.shape(rows)[0],
        np.asarray,
        np.sum,
        lambda rows: np.array([rows]),
        lambda rows: np.array(rows, dtype=np.float64),
    ],
)
def test_a_loop_that_takes_rows_of_its_first_batch_is_noted(take):
    runtime = script()
    take(BATCH)
    assert runtime.loop.why_whole


@pytest.mark.parametrize(
    "take",
    [
        lambda rows: float(rows[0, 0]),
        lambda rows: rows[0].numpy(),
        lambda rows: np.asarray(rows[0]),
        lambda rows: tf.transpose(rows).numpy(),
        lambda rows: rows.shape[1],
        lambda rows: rows.shape[1:],
        lambda rows: tf.transpose(rows).shape[0],
        lambda rows: tf.zeros(rows.shape),
        lambda rows: tf.reshape(rows, rows.shape).shape.rank,
    ],
)
def test_a_loop_that_takes_anything_else_is_not(take):
    runtime = script()
    take(BATCH)
    assert not runtime.loop.why_whole


def test_a_number_of_rows_of_a_divided_batch_changes_nothing():
    runtime = script(is_observed=False)
    assert len(BATCH) == 4
    assert not runtime.loop.why_whole


def other_part(runtime, array):
    """Have another rank take `array` wherever this rank takes one."""
    other = (True, np.shape(array), measures(array))
    runtime.collectives.gather = lambda value, label: [value, other]
    runtime.rows.present_rows = 2


PART = BATCH[:2]


@pytest.mark.parametrize(
    "take", [np.asarray, np.sum, lambda part: part.numpy(), lambda part: tf.concat([part, part], 0).numpy()]
)
def test_an_array_of_a_part_is_refused_after_a_first_batch_of_which_none_was_taken(take):
    runtime = script(part=PART, is_divided=True, trains=True, is_observed=False)
    other_part(runtime, BATCH[2:])
    with pytest.raises(Refused, match="of a rank's part"):
        take(PART)


def test_an_array_of_a_part_is_refused_when_it_is_taken_later():
    runtime = script(part=PART, is_divided=True, trains=True, is_observed=False)
    found = PART + 1.0
    runtime.taken_values.end_batch()
    runtime.loop.batch = None
    other_part(runtime, BATCH[2:])
    with pytest.raises(Refused):
        np.concatenate([found])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (PART, PART * 1.00001),  # the same, but for rounding
        (PART[:1], BATCH[2:3]),  # the first rows, which rank 0 has as one process would
        (tf.constant(["a", "b"]), PART),
    ],
)
def test_arrays_that_are_not_of_a_part_are_taken_as_they_are(ours, theirs):
    runtime = script(part=PART, is_divided=True, trains=True, is_observed=False)
    other_part(runtime, theirs)
    assert len(ours.numpy())


@pytest.mark.parametrize("how", [{"part": None}, {"is_observed": True, "part": None}])
def test_arrays_of_whole_batches_are_not_compared(how):
    runtime = script(**{"trains": True, "is_observed": False, **how})
    other_part(runtime, BATCH[2:])
    assert len(PART.numpy()) == 2


def test_a_text_that_is_executed_is_the_scripts_own():
    runtime = script()
    exec("len(rows)", {"rows": BATCH})
    assert runtime.loop.why_whole
    assert is_library(tf.__file__)
    assert not is_library("/home/anna/keras/train.py")
    assert not is_library("/usr/lib/python3/site-packages/fitlab/loop.py")


def test_numbers_are_weighted_by_rows_and_shown_to_the_witness():
    runtime = script(part=BATCH[:2], trains=True, is_observed=False)
    runtime.collectives.gather = lambda value, label: [(1.0, 1.0), (4.0, 2.0)]
    agreed = float(tf.constant(4.0))
    assert agreed == 3.0
    assert runtime.witness.seen == [3.0]


def test_a_number_without_fractions_is_a_sum_if_the_trial_has_seen_that_and_else_the_ranks_own(monkeypatch):
    runtime = script(part=BATCH[:2], trains=True, is_observed=False)
    trial = runtime.collectives.trial
    runtime.collectives.gather = lambda value, label: [(value[0], 2.0), (value[0], 2.0)]

    def count():
        return int(tf.constant(5))

    assert count() == 5
    monkeypatch.setattr(trial, "is_sum", lambda owner: True)
    assert count() == 10


def test_a_truth_value_is_rank_0s():
    runtime = script(part=BATCH[:2], trains=True, is_observed=False)
    runtime.collectives.gather = lambda value, label: [(1.0, 2.0), (0.0, 2.0)]
    assert bool(tf.constant(False))
    assert not runtime.witness.seen


@pytest.mark.parametrize(
    "take",
    [np.asarray, np.float32, np.mean, lambda number: np.array(number, np.float64), lambda number: np.sum([number])],
)
def test_a_number_that_numpy_takes_is_of_all_ranks(take):
    runtime = script(part=BATCH[:2], trains=True, is_observed=False)
    runtime.collectives.gather = lambda value, label: [(1.0, 1.0), (4.0, 2.0)]
    assert take(tf.constant(4.0)) == 3.0
    assert set(runtime.witness.seen) == {3.0}  # NumPy asks the numbers of a list twice


def of_ended_batch(runtime, value, rows, *, doubled=False):
    """Return a number that the script makes of a batch of which this rank has so many rows, and ends the batch."""
    number = tf.constant(value)
    runtime.rows.set(rows, (0, 4))
    runtime.collectives.trial.active = doubled
    runtime.taken_values.end_batch()
    runtime.collectives.trial.active = False
    return number


def test_numbers_that_are_taken_later_count_for_the_rows_of_their_own_batches():
    runtime = script(part=BATCH[:2], trains=True, is_observed=False)
    numbers = [of_ended_batch(runtime, 2.0, 3), of_ended_batch(runtime, 4.0, 1)]
    runtime.rows.set(2, (0, 4))
    runtime.collectives.gather = lambda value, label: [value, (10.0, 1.0)]
    assert np.array(numbers).tolist() == [(2.0 * 3 + 10.0) / 4, (4.0 + 10.0) / 2]
    assert np.array(tf.constant(1.0)) == (2.0 + 10.0) / 3


def test_numbers_of_whole_batches_are_the_ranks_own_whenever_they_are_taken():
    runtime = script(trains=True)
    number = of_ended_batch(runtime, 2.0, 1)
    runtime.loop.part = BATCH[:2]
    runtime.collectives.gather = lambda value, label: [value, (10.0, 1.0)]
    assert np.mean([number]) == 2.0


def test_numbers_that_are_taken_later_are_sums_if_that_of_the_doubled_batch_was_twice_as_large():
    runtime = script(part=BATCH[:2], trains=True, is_observed=False)
    hits = [of_ended_batch(runtime, 7, 1, doubled=True), of_ended_batch(runtime, 3, 1)]
    means = [of_ended_batch(runtime, 0.5, 1, doubled=True), of_ended_batch(runtime, 0.25, 1)]
    others = {7: (14.0, 0.0), 3: (2.0, 1.0), 0.5: (0.5, 0.0), 0.25: (0.75, 1.0)}
    runtime.collectives.gather = lambda value, label: [value, others[value[0]]]
    assert np.array(hits).tolist() == [7, 5]
    assert np.array(means).tolist() == [0.5, 0.5]
