"""The steps of a script's own loop are timed at the optimizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness.base.cpu_contention import CpuUsage
from harness.horovod import mpi_exchange
from harness.transparent.step_times import StepTimes, _gradients, _known, _taken_out

NO_CALLS = np.empty((0, 2))


@pytest.fixture
def times():
    return StepTimes(lambda: False, lambda: NO_CALLS)


def timed(times, moments):
    times._begin = CpuUsage.now()
    times.moments = list(moments)
    return times.epochs()


def test_two_steps_are_too_few(times):
    assert timed(times, [1.0, 2.0]) == []


def test_few_steps_are_one_epoch_after_the_one_that_compiles(times):
    compiled, epoch = timed(times, [0.0, 5.0, 6.0, 7.0])
    assert compiled.seconds == 0.0
    assert (epoch.steps, epoch.start, epoch.seconds) == (3, 0.0, 7.0)


def test_many_steps_are_four_epochs_and_the_first_ones_are_left_over(times):
    _, *epochs = timed(times, np.arange(24.0))
    assert [epoch.steps for epoch in epochs] == [5] * 4
    assert epochs[0].start == 3.0
    assert epochs[-1].start + epochs[-1].seconds == 23.0


def test_an_epoch_has_the_exchanges_that_lie_in_it(times, monkeypatch):
    monkeypatch.setattr(mpi_exchange, "calls", [(0.5, 0.6), (1.9, 2.1), (2.2, 2.3)])
    _, epoch = timed(times, [0.0, 1.0, 2.0, 2.2])
    assert epoch.calls.tolist() == [[0.5, 0.6], [1.9, 2.1]]


def test_the_outermost_optimizers_step_is_noted_and_none_inside_of_fit(times):
    def inner(optimizer, gradients):
        return times._step(lambda *_: "done", optimizer, gradients)

    assert times._step(inner, None, [tf.ones([1])]) == "done"
    assert len(times.moments) == 1
    fitting = StepTimes(lambda: True, lambda: NO_CALLS)
    fitting._step(lambda *_: None, None, [])
    assert fitting.moments == []


def test_a_compiled_step_is_noted_in_every_run(times):
    optimizer, variable = keras.optimizers.SGD(1.0), keras.Variable([1.0])
    optimizer.build([variable])

    @tf.function
    def step():
        times._step(keras.optimizers.SGD.apply, optimizer, [tf.ones([1])], [variable])

    for _ in range(3):
        step()
    assert len(times.moments) == 3
    assert variable.numpy().tolist() == [-2.0]


def test_gradients_come_by_place_or_by_name():
    assert _taken_out(([1], "rest"), {}) == ([1], ("rest",), {})
    assert _taken_out((), {"grads": [1], "other": 2}) == ([1], (), {"other": 2})
    assert _gradients([(1, "v"), 2]) == [1, 2]
    sparse = tf.IndexedSlices(tf.ones([1]), tf.constant([0]))
    assert len(_known([(None, "v"), (sparse, "w")])) == 2
