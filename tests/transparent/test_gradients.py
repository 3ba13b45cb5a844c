"""Gradients are averaged where a tape yields them or an optimizer applies them, once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from harness.transparent.gradients import GradientAverager, overwrite
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed


def taken(averager, variable, loss):
    with tf.GradientTape() as tape:
        value = loss(variable)
    with installed(averager):
        return tape.gradient(value, [variable])


def test_the_gradient_of_a_tape_is_a_mean_over_ranks_and_counts_a_step():
    runtime = alike_runtime()
    averager = GradientAverager(runtime)
    variable = tf.Variable([1.0, -2.0])
    with runtime.rows.batch_of(None, 4):
        (gradient,) = taken(averager, variable, lambda v: tf.reduce_sum(v**2))
    np.testing.assert_allclose(gradient, [2.0, -4.0])
    assert runtime.steps == 1
    assert runtime.synchronised
    assert runtime.variables.trained == [variable]


def test_what_a_tape_has_averaged_an_optimizer_averages_no_more():
    runtime = alike_runtime()
    averager = GradientAverager(runtime)
    variable = tf.Variable([1.0])
    runtime.collectives.trial.note(runtime.collectives.trial.owner(variable), True)  # a sum over ranks doubles
    gradients = [tf.constant([3.0])]
    with runtime.rows.batch_of(None, 4):
        assert float(averager.gradients(gradients, [variable])[0][0]) == 6.0
        averager.averaged([variable])
        assert averager.gradients(gradients, [variable])[0] is gradients[0]


def test_an_optimizer_steps_with_the_mean_and_its_inner_optimizer_exchanges_nothing(monkeypatch):
    runtime = alike_runtime()
    averager = GradientAverager(runtime)
    optimizer = keras.optimizers.SGD(0.5)
    variable = keras.Variable([2.0])
    optimizer.build([variable])
    quiet = []
    apply = BaseOptimizer.apply

    def noted_apply(self, grads, trainable_variables=None):
        quiet.append(runtime.quiet)
        return apply(self, grads, trainable_variables)

    monkeypatch.setattr(BaseOptimizer, "apply", noted_apply)
    with runtime.rows.batch_of(None, 4), installed(averager):
        optimizer.apply([tf.constant([1.0])], [variable])
    assert quiet == [True]
    assert variable.numpy().tolist() == [1.5]


def test_gradients_of_single_rows_stay_this_ranks():
    runtime = alike_runtime()
    averager = GradientAverager(runtime)
    variable = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        values = variable * tf.constant([1.0, 2.0])
    with installed(averager):
        rows = tape.jacobian(values, variable)
    assert tf.reshape(rows, [-1]).numpy().tolist() == [1.0, 2.0]
    assert runtime.steps == 0


@pytest.mark.parametrize("steps", range(1, 5))
def test_weights_are_averaged_at_the_end_of_the_policys_period(steps, monkeypatch):
    runtime = alike_runtime(sync="weights:2")
    averager = GradientAverager(runtime)
    variable = tf.Variable([1.0])
    averages = []

    def mean(values, label, **words):
        averages.append(label)
        return values

    monkeypatch.setattr(runtime.collectives, "mean", mean)
    for _ in range(steps):
        averager.after_step("optimizer", [variable])
    assert len(averages) == steps // 2


def test_an_eager_scalar_is_overwritten_for_whoever_holds_it():
    loss = tf.reduce_sum(tf.constant([1.0, 2.0]))
    held = loss
    overwrite(loss, tf.constant(7.0))
    assert float(held) == 7.0
