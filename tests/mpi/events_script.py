"""Writes TensorFlow event files in both of its ways, and checkpoints of a monitored TensorFlow-1 session."""

import json

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import summary_ops_v2

x = np.random.default_rng(2).normal(size=(64, 3)).astype("float32")
writer = summary_ops_v2.create_file_writer_v2("events")  # what TensorBoard's own module calls
with writer.as_default():
    summary_ops_v2.write("loss", 1.0, step=0)
writer.close()

v1 = tf.compat.v1
with tf.Graph().as_default():
    inputs = v1.placeholder(tf.float32, [None, 3])
    kernel = v1.get_variable("kernel", [3, 1], initializer=v1.random_normal_initializer())
    loss = tf.reduce_mean(tf.square(inputs @ kernel - inputs[:, :1]))
    step = v1.train.get_or_create_global_step()
    train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
    v1.summary.scalar("loss", loss)
    losses = []
    hooks = [v1.train.StopAtStepHook(last_step=12)]
    with v1.train.MonitoredTrainingSession(checkpoint_dir="monitored", hooks=hooks, save_summaries_steps=5) as session:
        while not session.should_stop():
            losses.append(float(session.run([train, loss], {inputs: x})[1]))
print("LOSSES", json.dumps(losses))
