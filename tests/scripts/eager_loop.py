"""A hand-written loop without tf.function, and train_on_batch: what is printed comes from metrics."""

import json

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(51)
rows = np.random.default_rng(23)
x = rows.normal(size=(330, 5)).astype("float32")
y = (x @ rows.normal(size=(5, 1)) + 0.1 * rows.normal(size=(330, 1))).astype("float32")
batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(330, seed=2).batch(24)

model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.02, momentum=0.5, global_clipnorm=2.0)
mean = keras.metrics.Mean()
losses = []
for _ in range(3):
    for features, targets in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features) - targets))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean.reset_state()
        mean.update_state(loss, sample_weight=len(features))
        losses.append(float(mean.result()))

model.compile(optimizer="sgd", loss="mse")
for begin in range(0, 320, 32):
    losses.append(float(model.train_on_batch(x[begin : begin + 32], y[begin : begin + 32])))
print("LOSSES", json.dumps(losses))
