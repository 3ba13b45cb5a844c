"""Losses and moments that are no mean over a rank's rows are made of the rows of all ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.losses.loss import Loss

from harness.schema.record_notes import NoteCode
from harness.transparent.keras_layers import Layers, along_rows, mixes_rows, of_rows, rows_of_all_ranks
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed

losses, metrics = keras.losses, keras.metrics


class OwnLoss(losses.Loss):
    def call(self, y_true, y_pred):
        return tf.reduce_max(y_pred, -1)


def masked():
    tensor = tf.ones([2, 3])
    keras.src.backend.set_keras_mask(tensor, tf.constant([True, False]))
    return tensor


@pytest.mark.parametrize(
    ("loss", "predictions", "is_mean"),
    [
        (losses.MeanSquaredError(), tf.ones([2]), True),
        (losses.MeanSquaredError(reduction="none"), tf.ones([2]), True),
        (losses.MeanSquaredError(reduction="sum"), tf.ones([2]), False),
        (losses.MeanSquaredError(), masked(), False),
        (losses.Dice(), tf.ones([2]), False),
        (losses.CosineSimilarity(axis=0), tf.ones([2]), False),
        (losses.SparseCategoricalCrossentropy(ignore_class=-1), tf.ones([2]), False),
        (OwnLoss(), tf.ones([2]), False),
    ],
)
def test_a_loss_is_known_to_be_a_mean_over_rows_or_not(loss, predictions, is_mean):
    assert of_rows(loss, [predictions]) == is_mean


def test_what_works_along_rows_or_correlates_them_mixes_them():
    assert along_rows(keras.layers.Softmax(axis=0))
    assert along_rows(keras.layers.LayerNormalization(axis=[0, 1]))
    assert not along_rows(keras.layers.Softmax())
    assert mixes_rows(metrics.PearsonCorrelation())
    assert not mixes_rows(metrics.MeanSquaredError())


def test_rows_of_all_ranks_come_with_their_masks_and_scalars_stay():
    runtime = alike_runtime()
    tensor = masked()
    with runtime.rows.batch_of(None, 2):
        rows, scalar, other = rows_of_all_ranks(runtime, [tensor, tf.constant(3.0), tf.ones([5])], "rows")
    assert rows.shape[1:] == [3] and len(rows) == 4
    assert keras.src.backend.get_keras_mask(rows).numpy().tolist() == [True, False, True, False]
    assert float(scalar) == 3.0
    assert len(other) == 5


@pytest.fixture
def rows_of_loss(monkeypatch):
    """Give what calls a loss on a rank with 2 rows, and returns how many the loss has been given."""
    call = Loss.__call__
    seen = []

    def noted_call(self, y_true, y_pred, sample_weight=None):
        seen.append(len(y_pred))
        return call(self, y_true, y_pred, sample_weight)

    monkeypatch.setattr(Loss, "__call__", noted_call)

    def rows(runtime, loss):
        seen.clear()
        with runtime.rows.batch_of(None, 2), installed(Layers(runtime)):
            loss(tf.ones([2, 1]), tf.ones([2, 1]))
        return seen

    return rows


def test_a_loss_of_the_scripts_own_gets_the_rows_of_all_ranks(rows_of_loss):
    runtime = alike_runtime()
    assert rows_of_loss(runtime, losses.MeanSquaredError()) == [2]
    assert not runtime.notes
    assert rows_of_loss(runtime, OwnLoss()) == [4]
    assert [note.code for note in runtime.notes] == [NoteCode.LOSS_OF_ALL_ROWS]
    with runtime.quietly():
        assert rows_of_loss(runtime, OwnLoss()) == [2]


def test_moments_are_those_of_all_ranks_and_none_while_rows_are_probed():
    runtime = alike_runtime()
    layer = keras.layers.BatchNormalization(epsilon=1e-7)
    rows = tf.constant([[1.0], [3.0]])
    with runtime.rows.batch_of(None, 2), installed(Layers(runtime)):
        np.testing.assert_allclose(layer(rows, training=True), [[-1.0], [1.0]], rtol=1e-5)
        runtime.collectives.trial.probe = object()
        np.testing.assert_allclose(layer(rows, training=True), rows, rtol=1e-5)


def test_variables_that_no_optimizer_changes_are_remembered():
    runtime = alike_runtime()
    layer = keras.layers.Layer()
    with installed(Layers(runtime)):
        trained = layer.add_weight(shape=[1])
        counted = layer.add_weight(shape=[1], trainable=False)
    assert runtime.variables.untrained == [counted]
    assert runtime.generation == 1
    assert trained.trainable
