"""The variables of a script in two processes: which of them hold other values."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.witness.observed_state import LiveVariables, state_gaps


def process(*values, more=0):
    """Return what a process has that makes a variable of each of `values`, and then so many of the last one's kind."""
    live = LiveVariables()
    made = [tf.Variable(value, name="kept") for value in values]
    for variable in made:
        live.note(variable)
    for _ in range(more):
        live.note(tf.Variable(values[-1], name="kept"))
    return live, made, live.observe("step")


def gaps(first, second):
    return state_gaps(process(*first)[2], process(*second)[2])


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (np.int64(16), np.int64(32)),
        (np.int64(31), np.int64(32)),
        (np.float32(0.02), np.float32(0.004)),
        (np.float32(2e-5), np.float32(2.1e-5)),
        (np.arange(5, dtype=np.int32), np.array([0, 1, 2, 3, 5], np.int32)),
        (np.float32([1.0, 2.0]), np.float32([1.0, 2.1])),
        (np.float32(1.0), np.float32(np.nan)),
        (np.array(True), np.array(False)),
    ],
)
def test_other_values_are_found(here, there):
    assert len(gaps([here], [there])) == 1


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (np.float32(1.0), np.float32(1.001)),
        (np.float32([1e-9, -1e-9]), np.float32([-1e-9, 1e-9])),
        (np.float32(np.nan), np.float32(np.nan)),
        (np.float16([1.0, 2.0]), np.float16([1.01, 2.01])),
        (np.int64(7), np.int64(7)),
    ],
)
def test_rounding_is_no_other_value(here, there):
    assert not gaps([here], [there])


def test_variables_of_one_kind_are_told_apart_by_their_order():
    (gap,) = gaps([np.int64(1), np.int64(2)], [np.int64(1), np.int64(3)])
    assert gap.variable.number == 1
    assert gap.values == (2.0, 3.0)


def test_kinds_of_which_a_process_has_made_more_are_not_compared():
    assert not state_gaps(process(np.int64(1), more=1)[2], process(np.int64(2))[2])


def test_what_is_gone_or_left_out_is_not_observed():
    live, made, _ = process(np.int64(1), np.int64(2), np.int64(3))
    live.leave_out(made[:1])
    del made[1]
    gc.collect()
    observed = live.observe("step")
    assert [float(measures[0]) for measures in observed.measures.values()] == [3.0]


def test_slots_of_an_optimizer_are_not_observed_and_its_counter_and_rate_are(monkeypatch):
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    live = LiveVariables()
    make = ResourceVariable.__init__

    def noted(variable, *args, **kwargs):
        make(variable, *args, **kwargs)
        live.note(variable)

    monkeypatch.setattr(ResourceVariable, "__init__", noted)
    optimizer = keras.optimizers.Adam(0.125)
    weights = keras.Variable(np.ones((3, 2), "float32"))
    optimizer.build([weights])
    live.leave_out([weights])
    observed = live.observe("step")
    assert sorted(float(measures[0]) for measures in observed.measures.values()) == [0.0, 0.125]
