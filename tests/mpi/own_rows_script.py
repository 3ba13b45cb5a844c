"""Every rank's own rows through tf.DataSet: Keras, a hand-written loop, a TensorFlow-1 session."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
data = tf.DataSet("npz", train_file=sys.argv[1], valid_pct=0.25)
x, y = data.training_data, data.training_labels


def network():
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])


cross_entropy = keras.losses.CategoricalCrossentropy(from_logits=True)
for batch in (64, 5):  # all rows in one step; and steps of which some ranks have fewer
    model = network()
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss=cross_entropy, metrics=["accuracy"])
    history = model.fit(
        x, y, batch_size=batch, epochs=6, verbose=0, validation_data=(data.validation_data, data.validation_labels)
    )
    print("HISTORY", json.dumps({key: [float(v) for v in values] for key, values in history.history.items()}))

model, optimizer, losses = network(), keras.optimizers.SGD(0.05), []
for _ in range(10):
    for features, labels in tf.data.Dataset.from_tensor_slices((x, y)).batch(64):
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(features, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.weights), model.weights, strict=True))
losses.append(float(model.evaluate(x, y, verbose=0)) if model.compiled else float(np.sum(model.weights[0].numpy())))
print("LOOP", json.dumps(losses))

model = network()
model.compile(optimizer=keras.optimizers.SGD(0.05), loss=cross_entropy)
print("BATCH", json.dumps([float(np.ravel(model.train_on_batch(x, y))[0]) for _ in range(10)]))

v1 = tf.compat.v1
with tf.Graph().as_default():
    inputs, labels = v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.float32, [None, 2])
    kernel = v1.get_variable("kernel", [3, 2], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=inputs @ kernel))
    right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(inputs @ kernel, 1), tf.argmax(labels, 1)), tf.float32))
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    session_losses = []
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for _ in range(10):
            session_losses.append(float(session.run([train, loss], {inputs: x, labels: y})[1]))
        accuracy = session.run(right, {inputs: data.validation_data, labels: data.validation_labels})
print("SESSION", json.dumps([*session_losses, float(accuracy)]))
