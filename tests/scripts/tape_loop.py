"""A hand-written loop: GradientTape in a tf.function, batches from tf.data, metrics, a checkpoint at the end."""

import json

import numpy as np
import tensorflow as tf

tf.random.set_seed(31)
tf.keras.utils.set_random_seed(31)
rows = np.random.default_rng(13)
x = rows.normal(size=(840, 6)).astype("float32")
y = (x @ rows.normal(size=(6, 3)) + 0.2 * rows.normal(size=(840, 3))).argmax(axis=1).astype("int32")
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(840, seed=3).batch(48)
total = sum(len(labels) for _, labels in train)  # reads all of it: not a training loop

model = tf.keras.Sequential([tf.keras.layers.Dense(20, activation="relu"), tf.keras.layers.Dense(3)])
optimizer = tf.keras.optimizers.Adagrad(0.1)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean = tf.keras.metrics.Mean()
accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
count = tf.keras.metrics.Sum()


@tf.function
def train_step(features, labels):
    with tf.GradientTape() as tape:
        logits = model(features, training=True)
        loss = loss_of(labels, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    mean.update_state(loss, sample_weight=tf.shape(features)[0])
    accuracy.update_state(labels, logits)
    return loss


losses, epochs = [], []
for _ in range(3):
    for features, labels in train:
        losses.append(float(train_step(features, labels)))
    for _, labels in train:
        count.update_state(tf.ones_like(labels))
    epochs.append([float(mean.result()), float(accuracy.result()), float(count.result())])
    mean.reset_state()
    accuracy.reset_state()
    count.reset_state()
model.save_weights("out-tape.weights.h5")
print("LOSSES", json.dumps(losses))
print("EPOCHS", json.dumps(epochs))
print("TOTAL", total)
