"""A TensorFlow-1 session: LeNet-3 as in the papers' scripts, feed_dict and inverse-time decay."""

import json

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
rows = np.random.default_rng(17)
images = rows.normal(size=(600, 12, 12, 1)).astype("float32")
labels = np.eye(3, dtype="float32")[np.abs(images.reshape(600, 3, -1)).mean(axis=2).argmax(axis=1)]


def weights(name, shape):
    deviation = 1 / np.sqrt(np.prod(shape[:-1]))
    return v1.get_variable(name, shape, initializer=v1.random_normal_initializer(stddev=deviation, seed=len(name)))


with tf.Graph().as_default():
    x = v1.placeholder(tf.float32, [None, 12, 12, 1])
    y = v1.placeholder(tf.float32, [None, 3])
    keep = v1.placeholder(tf.float32, [])
    first = tf.nn.relu(tf.nn.conv2d(x, weights("conv1", [5, 5, 1, 8]), 1, "SAME"))
    second = tf.nn.relu(tf.nn.conv2d(tf.nn.max_pool2d(first, 2, 2, "SAME"), weights("convo2", [5, 5, 8, 8]), 1, "SAME"))
    flat = tf.reshape(tf.nn.max_pool2d(second, 2, 2, "SAME"), [-1, 3 * 3 * 8])
    full = tf.nn.relu(flat @ weights("full", [72, 32])) * keep
    logits = full @ weights("answer", [32, 3])
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
    right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), tf.argmax(y, 1)), tf.float32))
    step = v1.train.get_or_create_global_step()
    rate = v1.train.inverse_time_decay(0.02, step, decay_steps=20, decay_rate=0.5)
    train = v1.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
    saver = v1.train.Saver()
    losses = []
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(60):
            begin = number * 50 % 600
            batch = {x: images[begin : begin + 50], y: labels[begin : begin + 50], keep: 1.0}
            _, value, count = session.run([train, loss, step], feed_dict=batch)
            losses.append(float(value))
        saver.save(session, "out-session/model")
        accuracy = session.run(right, feed_dict={x: images, y: labels, keep: 1.0})
        saver.restore(session, "out-session/model")
print("LOSSES", json.dumps(losses))
print("ACCURACY", json.dumps([float(accuracy), int(count)]))
