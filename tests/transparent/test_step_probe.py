"""What a probe finds of a compiled step: means, sums, rows that are mixed, variables that it moves; nothing stays."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.gradients import GradientAverager
from harness.transparent.probe.gradient_probe import Trial
from harness.transparent.probe.step_probe import CheckTimes, probe_function
from tests.labs.replacements import installed

ROWS, COLUMNS = 12, 3
X = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("float32")
T = (X @ np.array([[1.0], [-2.0], [0.5]], "float32")) + 0.1


@pytest.fixture
def trial():
    """Gradients of tapes go into the trial's probe, as on ranks."""
    known = Trial()
    variables = SimpleNamespace(is_of_rows=lambda variable: False)
    runtime = SimpleNamespace(collectives=SimpleNamespace(trial=known), variables=variables, quiet=True)
    with installed(GradientAverager(runtime)):
        yield known


def weights():
    return tf.Variable(0.1 * tf.ones((COLUMNS, 1)), name="k")


def made(loss, move=lambda v, t: None, number=None):
    """Return a compiled step with a `loss`, which has been called once, and its variable."""
    k = weights()

    @tf.function
    def step(v, t):
        move(v, t)
        with tf.GradientTape() as tape:
            value = loss(v @ k, t)
        k.assign_sub(0.1 * tape.gradient(value, k))
        return value if number is None else number(v, t)

    step(X, T)
    return step, k


def probed(trial, step):
    token, batch = object(), (tf.constant(X), tf.constant(T))
    with trial.of(token):
        independent = probe_function(trial, step, batch, {}, ROWS, lambda value: [value])
    return independent, token


def mean(p, t):
    return tf.reduce_mean(tf.square(p - t))


def total(p, t):
    return tf.reduce_sum(tf.square(p - t)) / ROWS


def masked(p, t):
    kept = tf.cast(t > 0, tf.float32)
    return tf.reduce_sum(kept * tf.square(p - t)) / tf.reduce_sum(kept)


@pytest.mark.parametrize(("loss", "summed"), [(mean, False), (total, True)])
def test_a_mean_and_a_sum_are_told_apart_for_gradients_and_numbers_of_each_step(trial, loss, summed):
    step, k = made(loss)
    before = k.numpy()
    independent, token = probed(trial, step)
    assert independent
    with trial.of(token):
        assert trial.is_sum(trial.owner(k)) == summed
    assert trial.is_sum(trial.position(token, 0)) == summed
    with trial.of(object()):
        assert not trial.is_sum(trial.owner(k))  # another training of the same variable
    np.testing.assert_array_equal(k.numpy(), before)


def test_rows_that_are_mixed_and_numbers_that_are_neither_are_found(trial):
    assert not probed(trial, made(masked)[0])[0]
    assert not probed(trial, made(mean, number=lambda v, t: tf.reduce_max(t))[0])[0]
    assert not probed(trial, made(lambda p, t: mean(p, t + tf.reshape(tf.range(12.0), (ROWS, 1))))[0])[0]


def test_variables_that_a_step_moves_by_rows_ask_for_all_of_them(trial):
    """A moving mean of rows is no exception: what is computed with it in the same step follows from the part."""
    middle, queue, sphere = tf.Variable(tf.zeros(COLUMNS)), tf.Variable(tf.zeros((4, 1))), tf.Variable([3.0, 4.0])
    for variable, move in (
        (middle, lambda v, t: middle.assign(0.9 * middle + 0.1 * tf.reduce_mean(v, 0))),
        (queue, lambda v, t: queue.assign(tf.concat([t, queue], 0)[:4])),
        (sphere, lambda v, t: sphere.assign(tf.math.l2_normalize(sphere) * 2)),
    ):
        step, _ = made(mean, move)
        before = variable.numpy()
        independent, _ = probed(trial, step)
        np.testing.assert_array_equal(variable.numpy(), before)
        assert independent == (variable is sphere)


def test_a_counter_of_rows_asks_for_all_of_them_and_a_counter_of_steps_does_not(trial):
    rows, steps = tf.Variable(0, dtype=tf.int64), tf.Variable(0, dtype=tf.int64)
    step, _ = made(mean, lambda v, t: rows.assign_add(tf.shape(v, tf.int64)[0]))
    assert not probed(trial, step)[0]
    assert int(rows) == ROWS
    step, _ = made(mean, lambda v, t: steps.assign_add(1))
    assert probed(trial, step)[0]
    assert int(steps) == 1


# Batches that are divided already are looked at again: only gradients count, as far as more is left than rounding.


def probed_again(trial, step, token):
    with trial.of(token):
        return probe_function(
            trial, step, (tf.constant(X), tf.constant(T)), {}, ROWS, lambda value: [value], again=True
        )


def test_a_step_that_mixes_rows_only_later_is_found(trial):
    is_late = tf.Variable(False)
    step, k = made(lambda p, t: tf.cond(is_late, lambda: masked(p, t), lambda: mean(p, t)))
    independent, token = probed(trial, step)
    assert independent
    assert probed_again(trial, step, token)
    is_late.assign(True)
    before = k.numpy()
    assert not probed_again(trial, step, token)
    np.testing.assert_array_equal(k.numpy(), before)


@pytest.mark.parametrize("left", [0.0, 1e-6])
def test_gradients_of_which_nothing_is_left_say_nothing(trial, left):
    scale = tf.Variable(1.0)
    step, _ = made(lambda p, t: tf.where(scale < 1.0, masked(p, t), mean(p, t)) * scale)
    independent, token = probed(trial, step)
    assert independent
    scale.assign(left)
    assert probed_again(trial, step, token)


def test_a_training_is_probed_again_before_steps_32_64_and_so_on():
    times = CheckTimes()
    probed_steps = []
    for step in range(1, 300):
        if times.steps_until == 0:
            probed_steps.append(step)
            times.note_probe()
        times.steps += 1
    assert probed_steps == [32, 64, 128, 256]
    times.steps += 2000  # many steps of one execution
    times.note_probe()
    assert times.due > times.steps
