"""Many steps in one compiled loop: only of steps that are Keras's own, and to the same weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.fused_loop import is_plain, lean_update, unfit


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


def test_a_model_with_a_step_of_its_own_is_not_plain():
    assert is_plain(keras.Sequential([keras.layers.Dense(1)]))
    assert not is_plain(OwnStep())
    patched = keras.Sequential([keras.layers.Dense(1)])
    vars(patched)["compute_loss"] = lambda *_: 0.0
    assert not is_plain(patched)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_the_update_in_one_operation_comes_to_keras_s_weights(momentum, nesterov):
    weights = []
    for lean in (False, True):
        optimizer = keras.optimizers.SGD(0.1, momentum=momentum, nesterov=nesterov)
        variable = keras.Variable([1.0, -2.0])
        optimizer.build([variable])
        for step in range(3):
            gradient = tf.constant([0.3, 0.7]) * (step + 1)
            if lean:
                with lean_update(optimizer):
                    optimizer.apply([gradient], [variable])
            else:
                optimizer.apply([gradient], [variable])
        weights.append(variable.numpy())
        assert "update_step" not in vars(optimizer)
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-6)


def test_operations_that_keep_what_they_have_drawn_are_unfit():
    drawing = tf.function(lambda: tf.random.uniform([3])).get_concrete_function()
    seeded = tf.function(lambda: tf.random.stateless_uniform([3], [1, 2])).get_concrete_function()
    assert unfit(drawing.graph)
    assert not unfit(seeded.graph)
