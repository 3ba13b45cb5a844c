"""What a loop takes out of TensorFlow: numbers of all ranks' rows, and whole batches for a loop that takes rows."""

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.taken_values import TakenValues, is_library
from tests.labs.alike_ranks import alike_runtime

BATCH = tf.reshape(tf.range(8.0), [4, 2])


class Observer:
    """A witness that keeps the numbers that it is shown."""

    is_witness = False

    def __init__(self):
        self.seen = []

    def numbers(self, place, value):
        self.seen.append(value)


def script(monkeypatch, **of_loop):
    """Return a runtime whose loop has taken a whole batch, with the values replaced that this file takes."""
    from tensorflow.python.framework import ops

    runtime = alike_runtime(1, batch="global")
    runtime.loop = DatasetLoop(dataset=None, lines=(), **{"batch": BATCH, **of_loop})
    runtime.rows.present_rows = 4
    runtime.witness = Observer()
    eager = ops._EagerTensorBase
    for owner, name in ((eager, "_numpy"), (eager, "__len__"), (eager, "shape"), (tf.Tensor, "__iter__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    TakenValues(runtime).install()
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
    ],
)
def test_a_loop_that_takes_rows_of_its_first_batch_is_noted(take, monkeypatch):
    runtime = script(monkeypatch)
    take(BATCH)
    assert runtime.loop.why_whole


@pytest.mark.parametrize(
    "take",
    [
        lambda rows: float(rows[0, 0]),
        lambda rows: rows[0].numpy(),
        lambda rows: tf.transpose(rows).numpy(),
        lambda rows: rows.shape[1],
        lambda rows: rows.shape[1:],
        lambda rows: tf.transpose(rows).shape[0],
        lambda rows: tf.zeros(rows.shape),
        lambda rows: tf.reshape(rows, rows.shape).shape.rank,
    ],
)
def test_a_loop_that_takes_anything_else_is_not(take, monkeypatch):
    runtime = script(monkeypatch)
    take(BATCH)
    assert not runtime.loop.why_whole


def test_what_is_taken_of_a_divided_batch_changes_nothing(monkeypatch):
    runtime = script(monkeypatch, is_observed=False)
    assert len(BATCH) == 4
    assert not runtime.loop.why_whole


def test_a_text_that_is_executed_is_the_scripts_own(monkeypatch):
    runtime = script(monkeypatch)
    exec("len(rows)", {"rows": BATCH})
    assert runtime.loop.why_whole
    assert is_library(tf.__file__)
    assert not is_library("/home/anna/keras/train.py")
    assert not is_library("/usr/lib/python3/site-packages/fitlab/loop.py")


def test_numbers_are_weighted_by_rows_and_shown_to_the_witness(monkeypatch):
    runtime = script(monkeypatch, part=BATCH[:2], trains=True, is_observed=False)
    runtime.collectives.gather = lambda value, label: [(1.0, 1.0), (4.0, 2.0)]
    agreed = float(tf.constant(4.0))
    assert agreed == 3.0
    assert runtime.witness.seen == [3.0]


def test_a_number_without_fractions_is_a_sum_if_the_trial_has_seen_that_and_else_the_ranks_own(monkeypatch):
    runtime = script(monkeypatch, part=BATCH[:2], trains=True, is_observed=False)
    trial = runtime.collectives.trial
    runtime.collectives.gather = lambda value, label: [(value[0], 2.0), (value[0], 2.0)]

    def count():
        return int(tf.constant(5))

    assert count() == 5
    monkeypatch.setattr(trial, "is_sum", lambda owner: True)
    assert count() == 10


def test_a_truth_value_is_rank_0s(monkeypatch):
    runtime = script(monkeypatch, part=BATCH[:2], trains=True, is_observed=False)
    runtime.collectives.gather = lambda value, label: [(1.0, 2.0), (0.0, 2.0)]
    assert bool(tf.constant(False))
    assert not runtime.witness.seen
