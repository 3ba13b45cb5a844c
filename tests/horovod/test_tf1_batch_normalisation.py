"""Batch normalisation as `tf.layers` had it."""

import numpy as np
import pytest
import tensorflow as tf

from harness.horovod.tf1_batch_normalisation import BatchNormalization, batch_normalization

v1 = tf.compat.v1


def run(*fetches):
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return session.run(list(fetches))


def test_without_training_it_normalises_by_its_moving_moments():
    with tf.Graph().as_default():
        outputs = batch_normalization(tf.constant([[2.0]]), epsilon=0.0)
        assert not v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        assert run(outputs)[0].tolist() == [[2.0]]


def test_another_axis_has_its_own_channels():
    rows = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    with tf.Graph().as_default():
        outputs = batch_normalization(tf.constant(rows), axis=1, training=True)
        assert v1.global_variables()[0].shape == [3]
        np.testing.assert_allclose(run(outputs)[0].mean((0, 2)), np.zeros(3), atol=1e-5)


def test_inputs_of_16_bits_have_variables_of_32():
    with tf.Graph().as_default():
        outputs = batch_normalization(tf.ones([2, 3], tf.bfloat16), training=True)
        assert outputs.dtype == tf.bfloat16
        assert {variable.dtype.base_dtype for variable in v1.global_variables()} == {tf.float32}


@pytest.mark.parametrize("words", [{"renorm": True}, {"virtual_batch_size": 4}, {"adjustment": lambda shape: shape}])
def test_what_is_not_offered_is_refused(words):
    with pytest.raises(ValueError):
        BatchNormalization(**words)
