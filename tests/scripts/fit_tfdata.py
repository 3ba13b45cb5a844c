"""Keras fit on tf.data with the usual callbacks, a functional model and validation data."""

import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(11)
rows = np.random.default_rng(5)
x = rows.normal(size=(999, 10)).astype("float32")
y = (np.tanh(x[:, :3]).sum(axis=1, keepdims=True) + 0.1 * rows.normal(size=(len(x), 1))).astype("float32")

train = tf.data.Dataset.from_tensor_slices((x[:900], y[:900])).shuffle(900, seed=1).batch(64).prefetch(2)
test = tf.data.Dataset.from_tensor_slices((x[900:], y[900:])).batch(49)  # the last batch has a single row

inputs = keras.Input((10,))
hidden = keras.layers.Dense(24, activation="tanh")(inputs)
outputs = keras.layers.Dense(1)(keras.layers.Concatenate()([inputs, hidden]))
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="mse", metrics=["mae"])

losses = []
folder = Path("out-tfdata")
folder.mkdir(exist_ok=True)
history = model.fit(
    train,
    epochs=5,
    verbose=0,
    validation_data=test,
    callbacks=[
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"]))),
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
        keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
        keras.callbacks.CSVLogger(folder / "log.csv"),
    ],
)
best = keras.models.load_model(folder / "best.keras")
print("LOSSES", json.dumps(losses))
print("HISTORY", json.dumps({key: [float(v) for v in values] for key, values in history.history.items()}))
print("EVALUATE", json.dumps([float(value) for value in best.evaluate(test, verbose=0)]))
