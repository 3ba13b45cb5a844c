"""A subclassed model with a train_step of its own and batch normalisation, fed by a PyDataset."""

import json
import math

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(21)
rows = np.random.default_rng(9)
x = (3 + rows.normal(size=(750, 8, 8, 1))).astype("float32")
y = (x[:, :4].mean(axis=(1, 2, 3)) > x[:, 4:].mean(axis=(1, 2, 3))).astype("float32")[:, None]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return math.ceil(len(x) / 40)

    def __getitem__(self, number):
        chosen = slice(number * 40, number * 40 + 40)
        return x[chosen], y[chosen]


class Network(keras.Model):
    def __init__(self):
        super().__init__()
        self.convolution = keras.layers.Conv2D(6, 3, use_bias=False)
        self.normalisation = keras.layers.BatchNormalization(momentum=0.9)
        self.flatten = keras.layers.Flatten()
        self.answer = keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name="loss")
        self.right = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)

    def call(self, images, training=False):
        features = tf.nn.relu(self.normalisation(self.convolution(images), training=training))
        return self.answer(self.flatten(features))

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.seen.update_state(loss, sample_weight=tf.shape(images)[0])
        self.right.update_state(labels, logits)
        return {"loss": self.seen.result(), "accuracy": self.right.result(), "step_loss": loss}

    @property
    def metrics(self):
        return [self.seen, self.right]


losses = []
model = Network()
model.compile(optimizer=keras.optimizers.Adam(2e-3, use_ema=True, ema_momentum=0.95))
model.fit(
    Batches(),
    epochs=3,
    verbose=0,
    shuffle=False,
    callbacks=[
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(float(logs["step_loss"])))
    ],
)
print("LOSSES", json.dumps(losses))
print("MOVING", json.dumps([float(value) for value in model.normalisation.moving_variance.numpy()]))
