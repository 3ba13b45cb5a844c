"""What Keras's trainers are asked before their batches are divided, and how ranks agree to stop."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from harness.base.errors import SharedError, UserError
from harness.transparent.collectives import Scalars
from harness.transparent.keras_trainer import Agreement, BatchAgreement, Trainers, _fixed_rows, _may_sum, _sees_batches
from tests.labs.alike_ranks import alike_runtime

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


def test_a_callback_that_sees_batches_is_told_from_keras_s_own():
    patched = kinds.Callback()
    patched.on_batch_end = lambda batch, logs=None: None
    assert all(_sees_batches(callback) for callback in (SeesBatches(), patched, kinds.LambdaCallback()))
    assert not _sees_batches(kinds.EarlyStopping())
    assert not _sees_batches(kinds.Callback())


@pytest.mark.parametrize(("callback", "kind"), [(kinds.EarlyStopping(), Agreement), (SeesBatches(), BatchAgreement)])
def test_the_agreement_comes_last_and_at_batches_only_where_something_stops_there(callback, kind):
    callbacks = Agreement.added([callback], alike_runtime(), None)
    assert callbacks[0] is callback
    assert type(callbacks[-1]) is kind


def test_all_ranks_stop_and_learn_as_rank_0_does():
    runtime = alike_runtime(1)
    runtime.collectives.gather = lambda value, label: [(True, 0.25), value]
    agreement = Agreement(runtime)
    agreement.set_model(compiled())
    agreement.on_epoch_end(0)
    assert agreement.model.stop_training is True
    assert float(agreement.model.optimizer.learning_rate) == 0.25


def test_layers_that_take_a_fixed_number_of_rows_say_so():
    assert not _fixed_rows(keras.layers.Dense(1))
    assert _fixed_rows(keras.layers.InputLayer(batch_shape=(4, 2)))
    assert _fixed_rows(keras.layers.LSTM(2, stateful=True))
    assert not _fixed_rows(keras.layers.InputLayer(shape=(2,)))


def test_only_parts_of_the_scripts_own_may_sum_over_rows():
    assert not _may_sum(compiled())
    assert _may_sum(compiled(keras.layers.Lambda(lambda v: v)))
    assert _may_sum(compiled(keras.layers.Dense(1, activity_regularizer="l2")))
    assert _may_sum(compiled(loss=keras.losses.MeanSquaredError(reduction="none")))


def test_a_batch_by_hand_is_divided_where_all_ranks_get_as_many_rows():
    runtime = alike_runtime(1)
    seen = []

    def original(trainer, x, y, sample_weight):
        seen.append((x.numpy().tolist(), runtime.rows.even))

    model = compiled()
    patched = trainers(runtime)
    patched._on_batch(original, model, tf.constant([[1.0, 1.0], [2.0, 2.0]]), tf.zeros([2, 1]))
    assert seen == [([[2.0, 2.0]], True)]
    assert not runtime.mixes
    patched._on_batch(original, model, tf.ones([3, 2]), tf.zeros([3, 1]))
    assert len(seen[-1][0]) == 3
    assert runtime.mixes


def test_a_part_of_a_loops_batch_is_not_divided_again():
    runtime = alike_runtime()
    part = tf.ones([2, 2])
    runtime.loop = SimpleNamespace(part=(part, None))
    with pytest.raises(UserError):
        trainers(runtime)._on_batch(lambda *_: None, compiled(), part)


def test_every_rank_predicts_everything():
    runtime = alike_runtime()
    assert trainers(runtime)._predict(lambda: (runtime.quiet, runtime.in_trainer)) == (True, True)


def test_a_strategy_of_one_replica_is_left_out_and_one_of_several_stays():
    runtime = alike_runtime()
    patched = trainers(runtime)
    single = SimpleNamespace(num_replicas_in_sync=1)
    several = SimpleNamespace(num_replicas_in_sync=2)
    assert patched._strategy(lambda: single, object) is tf.distribute.get_strategy()
    assert patched._strategy(lambda: several, object) is several


def test_steps_are_of_the_data_of_their_fit():
    patched = trainers(alike_runtime())
    x, y = object(), object()
    with patched._of({"x": x, "y": y}):
        assert patched._source == (id(x), id(y))
    assert patched._source == ()


def test_ranks_whose_epochs_have_other_numbers_of_steps_end():
    runtime = alike_runtime(1)
    agreement = Agreement(runtime)
    agreement.set_params({"steps": 4})
    agreement.on_train_begin()
    runtime.collectives.gather = lambda value, label: [type(value)(), value]
    with pytest.raises(SharedError):
        agreement.on_train_begin()
