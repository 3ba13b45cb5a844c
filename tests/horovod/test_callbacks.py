"""Horovod's callbacks for Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.horovod import callbacks
from harness.horovod.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
    Momentum,
)

pytestmark = pytest.mark.usefixtures("two_ranks")


def on_model(callback, optimizer=None, steps=4):
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(1.0), "mse")
    callback.set_model(model)
    callback.set_params({"steps": steps})
    callback.on_train_begin()
    return model


def test_variables_are_broadcast_once(monkeypatch):
    calls = []
    monkeypatch.setattr(callbacks, "broadcast_variables", lambda variables, root: calls.append((variables, root)))
    callback = BroadcastGlobalVariablesCallback(1)
    model = on_model(callback)
    for batch in range(2):
        callback.on_train_batch_end(batch)
    ((variables, root),) = calls
    assert root == 1
    assert all(any(variable is given for given in variables) for variable in model.variables)


def test_numbers_of_an_epoch_are_the_ranks_means():
    logs = {"loss": 0.5, "accuracy": 1}
    MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == {"loss": 0.5, "accuracy": 1.0}


def test_the_rate_follows_its_multiplier_between_two_epochs():
    callback = LearningRateScheduleCallback(2.0, lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3)
    model = on_model(callback)
    rates = []
    for epoch in range(4):
        callback.on_epoch_begin(epoch)
        callback.on_train_batch_begin(0)
        logs = {}
        callback.on_epoch_end(epoch, logs)
        rates.append(logs["lr"])
    assert rates == [1.0, 1.0, 0.5, 0.5]
    assert float(model.optimizer.learning_rate) == 0.5


def test_momentum_is_scaled_with_the_rate_for_one_batch():
    callback = LearningRateScheduleCallback(0.5, 1.0)
    model = on_model(callback, keras.optimizers.SGD(1.0, momentum=0.8))
    momentum = model.optimizer.momentum
    assert isinstance(momentum, Momentum)
    callback.on_epoch_begin(0)
    callback.on_train_batch_begin(0)
    assert float(tf.convert_to_tensor(momentum)) == pytest.approx(0.4)
    callback.on_train_batch_end(0)
    assert float(tf.convert_to_tensor(momentum)) == pytest.approx(0.8)


def test_warming_up_ends_at_the_rate_that_is_given():
    callback = LearningRateWarmupCallback(1.0, warmup_epochs=2, steps_per_epoch=4)
    model = on_model(callback)
    rates = []
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        for batch in range(4):
            callback.on_train_batch_begin(batch)
            rates.append(float(model.optimizer.learning_rate))
    np.testing.assert_allclose(rates, 0.5 + np.arange(1, 9) / 16)


def test_a_schedule_of_the_optimizers_own_and_unknown_steps_are_refused():
    schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    with pytest.raises(UserError):
        on_model(LearningRateScheduleCallback(1.0, 1.0), keras.optimizers.SGD(schedule))
    with pytest.raises(ValueError):
        on_model(LearningRateScheduleCallback(1.0, 1.0, staircase=False), steps=None)
    with pytest.raises(ValueError):
        LearningRateScheduleCallback(None, 1.0)
