"""Keras fit on arrays, with a validation split, class weights and a partial last batch."""

import json
import sys

import keras
import numpy as np

keras.utils.set_random_seed(7)
rows = np.random.default_rng(3)
x = rows.normal(size=(1010, 12)).astype("float32")
y = (x[:, :4].sum(axis=1) + 0.3 * rows.normal(size=len(x)) > 0).astype("int32")

model = keras.Sequential(
    [
        keras.Input((12,)),
        keras.layers.Dense(32, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4)),
        keras.layers.Dense(2),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3, clipnorm=1.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
losses = []
record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"])))
history = model.fit(
    x, y, batch_size=48, epochs=3, verbose=0, validation_split=0.1, class_weight={0: 1.0, 1: 2.0}, callbacks=[record]
)
print("LOSSES", json.dumps(losses))
print("HISTORY", json.dumps(history.history))
print("EVALUATE", json.dumps([float(value) for value in model.evaluate(x, y, batch_size=48, verbose=0)]))
print("ARGUMENTS", json.dumps(sys.argv[1:]))
