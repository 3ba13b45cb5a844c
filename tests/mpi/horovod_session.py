"""A TensorFlow-1 graph in the manner of public benchmarks: `tf.layers`, cells of `tf.nn.rnn_cell`, a sum per gradient.

Words: a file to write, then the number of steps. Each rank takes every size-th row of the same batches.
"""

import json
import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
hvd.init()
target = Path(sys.argv[1])
steps = int(sys.argv[2])
generator = np.random.RandomState(0)
images = generator.randn(steps, 8, 6, 6, 1).astype("float32")
answers = images.sum(axis=(2, 3))
tf.set_random_seed(1 + hvd.rank())
X = tf.placeholder(tf.float32, [None, 6, 6, 1])
Y = tf.placeholder(tf.float32, [None, 1])
maps = tf.layers.conv2d(X, 2, 3, activation=tf.nn.relu)
pooled = tf.layers.max_pooling2d(maps, 2, 2)
flat = tf.layers.flatten(pooled)
series = tf.reshape(flat, [-1, 4, 2])
outputs, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(3), series, dtype=tf.float32)
loss = tf.reduce_mean(tf.square(tf.layers.dense(state, 1) - Y))
variables = tf.trainable_variables()
gradients = tf.gradients(loss, variables)
sums = [hvd.allreduce(gradient, average=False, device_dense="/cpu:0") for gradient in gradients]
optimizer = tf.train.MomentumOptimizer(0.02 / hvd.size(), 0.9)
train = optimizer.apply_gradients(zip(sums, variables, strict=True))
mean_loss = hvd.allreduce(loss)
own = slice(hvd.rank(), None, hvd.size())
losses = []
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(hvd.broadcast_global_variables(0))
    for batch, answer in zip(images, answers, strict=True):
        value, _ = session.run([mean_loss, train], {X: batch[own], Y: answer[own]})
        losses.append(float(value))
        if len(losses) == 2:  # those that compile
            begin = time.perf_counter()
    seconds = time.perf_counter() - begin
    lengths = [float(np.linalg.norm(value)) for value in session.run(variables)]
print(f"total samples/sec: {8 * (steps - 2) / seconds:.1f}")
if hvd.rank() == 0:
    target.write_text(json.dumps({"losses": losses, "lengths": lengths}))
