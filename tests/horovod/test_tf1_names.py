"""Names of TensorFlow 1 that TensorFlow refuses beside Keras 3 are answered, and compute what they did."""

import numpy as np
import pytest
import tensorflow as tf

from harness.horovod.tf1_names import answer

old = tf.compat.v1


@pytest.fixture
def graph():
    answer()
    graph = tf.Graph()
    with graph.as_default():
        yield graph


def values(graph, *fetches, feed=None):
    with old.Session(graph=graph) as session:
        session.run(old.global_variables_initializer())
        return session.run(list(fetches), feed)


@pytest.mark.parametrize("shape", [(6, 3), (4, 5, 5, 3)])
def test_batch_normalisation_of_old_normalises_each_channel_and_moves_its_moments(graph, shape):
    rows = np.random.default_rng(0).normal(2.0, 3.0, shape).astype(np.float32)
    normalised = old.layers.batch_normalization(tf.constant(rows), momentum=0.9, training=True)
    updates = old.get_collection(old.GraphKeys.UPDATE_OPS)
    moving = {variable.op.name.rpartition("/")[2]: variable for variable in old.global_variables()}
    assert len(updates) == 2
    with old.Session() as session:
        session.run(old.global_variables_initializer())
        found, _ = session.run([normalised, updates])
        mean, variance = session.run([moving["moving_mean"], moving["moving_variance"]])
    axes = tuple(range(len(shape) - 1))
    expected = (rows - rows.mean(axes)) / np.sqrt(rows.var(axes) + 1e-3)
    count = rows.size // shape[-1]
    corrected = count / (count - 1) if len(shape) == 4 else 1.0  # TensorFlow's fused operation corrects by Bessel
    assert found == pytest.approx(expected, abs=1e-4)
    assert mean == pytest.approx(0.1 * rows.mean(axes), rel=1e-4)
    assert variance == pytest.approx(0.9 + 0.1 * corrected * rows.var(axes), rel=1e-4)


def test_batch_normalisation_of_old_follows_a_switch_that_is_fed(graph):
    training = old.placeholder_with_default(False, [])
    layer = old.layers.BatchNormalization(axis=-1, center=False, scale=False, fused=True)
    normalised = layer.apply(tf.constant([[1.0], [3.0]]), training=training)
    updates = old.get_collection(old.GraphKeys.UPDATE_OPS)
    (still, _), (moved, _) = (values(graph, normalised, updates, feed={training: switch}) for switch in (False, True))
    assert still == pytest.approx(np.array([[1.0], [3.0]]) / np.sqrt(1.001), rel=1e-5)
    assert moved == pytest.approx(np.array([[-1.0], [1.0]]), abs=1e-2)


def test_a_name_that_tensorflow_never_had_is_still_none(graph):
    with pytest.raises((AttributeError, ImportError)):
        _ = old.layers.conv7d
