"""Keras 2's spellings are answered on Keras 3. They are put in place in a process of their own, as they stay."""

import json
import subprocess

import pytest

from tests.mpi.launch import warm_python

PROGRAM = """
import json
import keras
import tensorflow as tf
from harness.horovod.keras2_names import offer_keras2

offer_keras2()

class Own(keras.layers.Layer):
    def __init__(self):
        super().__init__(self)

    def call(self, inputs, training=False):
        return inputs + (1.0 if training else 0.0)

optimizer = keras.optimizers.SGD(lr=0.25)
scheduled = keras.optimizers.SGD(learning_rate=0.5, decay=1.0)
model = keras.Sequential([keras.Input([1]), keras.layers.BatchNormalization(fused=True), keras.layers.Dense(1)])
model.compile(optimizer, "mse", experimental_run_tf_function=False)
rows = tf.ones([2, 1])
before = float(optimizer.lr)
optimizer.lr = 0.125
history = model.fit_generator(((rows, rows) for _ in range(1)), steps_per_epoch=1, verbose=0, workers=2)
print("FOUND", json.dumps({
    "rate": [before, float(optimizer.learning_rate)],
    "decayed": type(scheduled._learning_rate).__name__,
    "variables": len(optimizer.variables()) == len(optimizer.variables),
    "legacy": isinstance(keras.optimizers.legacy.SGD(), keras.optimizers.SGD),
    "called": float(Own()(tf.constant(1.0), True)),
    "fitted": len(history.history["loss"]),
    "checkpoint": keras.callbacks.ModelCheckpoint("best", period=1).filepath,
    "loss": callable(keras.losses.mean_squared_error),
    "experimental": keras.layers.experimental.preprocessing is keras.layers,
}))
"""


@pytest.fixture(scope="module")
def found():
    finished = subprocess.run([warm_python(), "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("FOUND ")]
    return {**json.loads(line.removeprefix("FOUND ")), "told": finished.stderr}


def test_optimizers_know_their_former_words(found):
    assert found["rate"] == [0.25, 0.125]
    assert found["decayed"] == "InverseTimeDecay"
    assert found["variables"] and found["legacy"]


def test_models_and_layers_know_theirs(found):
    assert found["called"] == 2.0
    assert found["fitted"] == 1
    assert found["checkpoint"].endswith("best.keras")
    assert found["loss"] and found["experimental"]


def test_each_spelling_is_told_once(found):
    lines = [line for line in found["told"].splitlines() if line.startswith("harness: ")]
    assert len(lines) == len(set(lines)) >= 8
