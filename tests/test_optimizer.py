"""The fused updates are Keras's own, to rounding."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness.schema.presets import resolve
from harness.train.optimizer import build_optimizer

STEPS = 30


def train(optimizer: keras.optimizers.Optimizer) -> np.ndarray:
    """Return a vector after some steps of a compiled loop with made gradients of many sizes."""
    variable = keras.Variable(np.linspace(-1, 1, 50, dtype=np.float32))
    optimizer.build([variable])
    random = np.random.default_rng(0)
    gradients = tf.constant(random.normal(size=(STEPS, 50)) * 10.0 ** random.integers(-6, 3, (STEPS, 50)), tf.float32)

    @tf.function
    def loop():
        for index in tf.range(STEPS):
            optimizer.apply([gradients[index]], [variable])

    loop()
    return variable.numpy()


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize(
    ("name", "keras_class"),
    [
        ("sgd", keras.optimizers.SGD),
        ("momentum", lambda rate: keras.optimizers.SGD(rate, momentum=0.9)),
        ("adam", keras.optimizers.Adam),
    ],
)
def test_fused_updates_are_those_of_keras(name, keras_class, schedule):
    workload = resolve(dataset="mnist", model="dnn", optimizer=name, learning_rate=0.01, schedule=schedule, epochs=1)
    rate = keras.optimizers.schedules.CosineDecay(0.01, decay_steps=STEPS) if schedule == "cosine" else 0.01
    ours, theirs = train(build_optimizer(workload, steps_per_epoch=STEPS, ranks=1)), train(keras_class(rate))
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    assert np.abs(ours - np.linspace(-1, 1, 50)).max() > 0.01
