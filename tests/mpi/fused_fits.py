"""A script that trains every model twice: with a callback for batches, so in single steps, and without, in fused ones.

It prints ``CASE {...}`` for each: how far the weights and the logs of the two are apart, as shares of their size.
"""

import json
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

ROWS, FEATURES, CLASSES = 500, 12, 3
draw = np.random.RandomState(1)
x = draw.normal(size=(ROWS, FEATURES)).astype("float32")
y = draw.randint(0, CLASSES, ROWS)


class Watcher(keras.callbacks.Callback):
    """Looks at batches, and does nothing."""

    def on_train_batch_end(self, batch, logs=None):
        """Look."""


class OwnStep(keras.Model):
    """A training step of the script's own, which reports a number of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            rows = keras.losses.sparse_categorical_crossentropy(targets, self(inputs, training=True), from_logits=True)
            loss = tf.reduce_mean(rows)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "norm": tf.linalg.global_norm(gradients)}


def network(*layers):
    """Return a classifier with `layers` after its hidden one."""
    head = [keras.Input((FEATURES,)), keras.layers.Dense(16, activation="tanh")]
    return keras.Sequential([*head, *layers, keras.layers.Dense(CLASSES)])


def batches():
    """Return a data set of batches, the last of which has fewer rows."""
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=3).batch(32)


def trained(make, optimizer, data, settings, *, watched):
    """Return weights and logs of a training, and the files that it has saved."""
    keras.utils.set_random_seed(5)
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled = {"steps_per_execution": settings.get("steps_per_execution", 1)}
    metrics = None if make is OwnStep else ["accuracy"]
    model.compile(optimizer=optimizer(), loss=loss, metrics=metrics, **compiled)
    given = {name: value for name, value in settings.items() if name != "steps_per_execution"}
    callbacks = [make() for make in given.pop("callbacks", [])] + [Watcher()] * watched
    history = model.fit(*data(), epochs=3, verbose=0, callbacks=callbacks, **given)
    return model.get_weights(), history.history


def apart(first, second):
    """Return the greatest distance between arrays of two trainings as a share of their size."""
    pairs = zip(first, second, strict=True)
    return max(float(np.max(np.abs(a - b)) / max(np.max(np.abs(a)), 1e-9)) for a, b in pairs)


def sgd():
    return keras.optimizers.SGD(0.1)


def rows():
    return x, y


folder = Path(tempfile.mkdtemp())
normalised = [keras.layers.Dropout, keras.layers.BatchNormalization]
CASES = {
    "arrays": (network, sgd, rows, {"batch_size": 25}),
    "momentum": (network, lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), rows, {"batch_size": 25}),
    "partial": (network, keras.optimizers.Adam, rows, {"batch_size": 32, "validation_split": 0.2}),
    "weighted": (network, sgd, rows, {"batch_size": 25, "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}),
    "normalised": (
        lambda: network(keras.layers.Dropout(0.3), keras.layers.BatchNormalization()),
        sgd,
        rows,
        {"batch_size": 25},
    ),
    "cut": (network, sgd, rows, {"batch_size": 20, "steps_per_epoch": 7}),
    "bundled": (network, sgd, rows, {"batch_size": 25, "steps_per_execution": 4}),
    "dataset": (network, sgd, lambda: (batches(),), {}),
    "endless": (network, sgd, lambda: (batches().repeat(),), {"steps_per_epoch": 7}),
    "unknown": (network, sgd, lambda: (batches().filter(lambda *_: True),), {}),
    "own step": (OwnStep, sgd, rows, {"batch_size": 25}),
    "saved": (
        network,
        sgd,
        rows,
        {
            "batch_size": 25,
            "callbacks": [
                lambda: keras.callbacks.ModelCheckpoint(folder / "{epoch}-{batch}.weights.h5", save_freq=3),
                lambda: keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0),
            ],
        },
    ),
}
for name, case in CASES.items():
    if len(sys.argv) > 1 and name not in sys.argv[1:]:
        continue
    single, fused = (trained(*case, watched=watched) for watched in (True, False))
    logs = [[np.array(found[1][key]) for key in sorted(found[1])] for found in (single, fused)]
    epochs = [len(found[1]["loss"]) for found in (single, fused)]
    found = {"weights": apart(single[0], fused[0]), "logs": apart(*logs), "epochs": epochs}
    print("CASE", json.dumps({"name": name, **found}), flush=True)
