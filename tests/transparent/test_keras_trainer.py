"""What Keras's trainers are asked before their batches are divided, and how ranks agree to stop."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from harness.base.errors import SharedError
from harness.schema.record_notes import NoteCode
from harness.transparent.collectives import Scalars
from harness.transparent.keras_trainer import Agreement, BatchAgreement, Trainers, fixed_rows, may_sum
from harness.transparent.patch import Refused
from harness.transparent.witness import PeerRank
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed

kinds = keras.callbacks


def trainers(runtime):
    return Trainers(runtime, Scalars(runtime.collectives), lambda: None)


class SeesBatches(kinds.Callback):
    def on_train_batch_end(self, batch, logs=None):
        """Look at a batch."""


def compiled(*layers, loss="mse"):
    model = keras.Sequential([keras.Input([2]), *layers, keras.layers.Dense(1)])
    model.compile("sgd", loss)
    return model


def agreement_of(callback):
    """Return the kind of agreement that a script with this callback has."""
    return type(Agreement.added([callback], alike_runtime(), None)[-1])


def test_a_callback_that_sees_batches_is_told_from_keras_s_own():
    patched = kinds.Callback()
    patched.on_batch_end = lambda batch, logs=None: None
    for callback in (SeesBatches(), patched, kinds.LambdaCallback()):
        assert agreement_of(callback) is BatchAgreement
    for callback in (kinds.EarlyStopping(), kinds.Callback()):
        assert agreement_of(callback) is Agreement


def test_the_agreement_comes_after_the_scripts_callbacks():
    callback = kinds.EarlyStopping()
    callbacks = Agreement.added([callback], alike_runtime(), None)
    assert callbacks[0] is callback
    assert isinstance(callbacks[-1], Agreement)


def test_all_ranks_stop_and_learn_as_rank_0_does():
    runtime = alike_runtime(1)
    runtime.collectives.gather = lambda value, label: [(True, 0.25), value]
    agreement = Agreement(runtime)
    agreement.set_model(compiled())
    agreement.on_epoch_end(0)
    assert agreement.model.stop_training is True
    assert float(agreement.model.optimizer.learning_rate) == 0.25


def test_layers_that_take_a_fixed_number_of_rows_say_so():
    assert not fixed_rows(keras.layers.Dense(1))
    assert fixed_rows(keras.layers.InputLayer(batch_shape=(4, 2)))
    assert fixed_rows(keras.layers.LSTM(2, stateful=True))
    assert not fixed_rows(keras.layers.InputLayer(shape=(2,)))


def test_only_parts_of_the_scripts_ownmay_sum_over_rows():
    assert not may_sum(compiled())
    assert may_sum(compiled(keras.layers.Lambda(lambda v: v)))
    assert may_sum(compiled(keras.layers.Dense(1, activity_regularizer="l2")))
    assert may_sum(compiled(loss=keras.losses.MeanSquaredError(reduction="none")))


def test_a_batch_by_hand_is_divided_where_all_ranks_get_as_many_rows(monkeypatch):
    runtime = alike_runtime(1)
    seen = []

    def train_on_batch(self, x, y=None, sample_weight=None):
        seen.append((x.numpy().tolist(), runtime.rows.even))

    monkeypatch.setattr(TensorFlowTrainer, "train_on_batch", train_on_batch)
    model = compiled()
    with installed(trainers(runtime)):
        model.train_on_batch(tf.constant([[1.0, 1.0], [2.0, 2.0]]), tf.zeros([2, 1]))
        assert seen == [([[2.0, 2.0]], True)]
        assert not runtime.mixes
        model.train_on_batch(tf.ones([3, 2]), tf.zeros([3, 1]))
    assert len(seen[-1][0]) == 3
    assert runtime.mixes


class LostWitness(PeerRank):
    """Rank 0 whose witness has gone."""

    def judges_next(self):
        return False


def test_a_training_that_no_witness_compares_takes_whole_batches(monkeypatch):
    runtime = alike_runtime(1)
    runtime.witness = LostWitness()
    seen = []
    monkeypatch.setattr(TensorFlowTrainer, "train_on_batch", lambda self, x, y=None, sample_weight=None: seen.append(x))

    def fit(self, x=None, y=None, batch_size=None, epochs=1, callbacks=None):
        seen.append(runtime.undivided.get())

    monkeypatch.setattr(TensorFlowTrainer, "fit", fit)
    with installed(trainers(runtime)):
        compiled().train_on_batch(tf.ones([2, 2]), tf.zeros([2, 1]))
        compiled().fit(tf.ones([2, 2]))
        judged = compiled()
        judged.make_train_function()
        judged.fit(tf.ones([2, 2]))
    assert [len(seen[0]), *seen[1:]] == [2, True, False]
    assert [note.code for note in runtime.notes][:1] == [NoteCode.NOT_DIVIDED_FROM]


def test_a_part_of_a_loops_batch_is_not_divided_again():
    runtime = alike_runtime()
    part = tf.ones([2, 2])
    runtime.loop = SimpleNamespace(part=(part, None))
    with installed(trainers(runtime)), pytest.raises(Refused):
        compiled().train_on_batch(part)


def test_every_rank_predicts_everything(monkeypatch):
    runtime = alike_runtime()
    monkeypatch.setattr(TensorFlowTrainer, "predict", lambda self, x: (runtime.quiet, runtime.in_trainer))
    with installed(trainers(runtime)):
        assert compiled().predict(tf.ones([2, 2])) == (True, True)


def test_a_strategy_of_one_replica_is_left_out_and_one_of_several_stays(monkeypatch):
    class Several:
        num_replicas_in_sync = 2

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", Several)
    with installed(trainers(alike_runtime())):
        assert tf.distribute.OneDeviceStrategy("/cpu:0") is tf.distribute.get_strategy()
        assert type(tf.distribute.MirroredStrategy()) is Several


def test_ranks_whose_epochs_have_other_numbers_of_steps_end():
    runtime = alike_runtime(1)
    agreement = Agreement(runtime)
    agreement.set_params({"steps": 4})
    agreement.on_train_begin()
    runtime.collectives.gather = lambda value, label: [type(value)(), value]
    with pytest.raises(SharedError):
        agreement.on_train_begin()
