"""An elastic training in Horovod's words: RANK kills itself after SECONDS, before step 7 where they are 0.

Every rank writes what it has come to: left-RANK.json, by its number at the start.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

STEPS = 40
hvd.init()
first, killed, seconds = hvd.rank(), int(sys.argv[1]), float(sys.argv[2])
tf.keras.utils.set_random_seed(1 + first)
model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1)])
optimizer = tf.optimizers.Adam(0.01)
weights = model.trainable_variables
ranks, begun, losses = [], [], []


@tf.function
def step(x, averaged):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - tf.reduce_sum(x, 1, keepdims=True)))
    tape = hvd.DistributedGradientTape(tape) if averaged else tape
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return hvd.allreduce(loss)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@hvd.elastic.run
def train(state):
    ranks.append(hvd.size())
    begun.append(state.batch)
    if first == killed and seconds and len(ranks) == 1:
        threading.Timer(seconds, die).start()
    while state.batch < STEPS:
        if first == killed and not seconds and state.batch == 7:
            die()
        time.sleep(seconds and 0.1)  # so that it lasts longer than that
        losses.append(float(step(tf.random.normal((32, 8)), True)))
        state.batch += 1
        if state.batch % 5 == 0:
            state.commit()


step(tf.ones((32, 8)), False)  # builds the optimizer, as Horovod's examples do: what trains is compiled behind it
state = hvd.elastic.KerasState(model, optimizer, batch=0)
resets = []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
digest = hashlib.sha256(b"".join(np.array(each).tobytes() for each in [*model.variables, *optimizer.variables]))
found = {"sha256": digest.hexdigest(), "batch": state.batch, "ranks": ranks, "begun": begun, "resets": resets}
found |= {"losses": [losses[0], losses[-1]], "steps": int(optimizer.iterations)}
Path(f"left-{first}.json").write_text(json.dumps(found))
if hvd.rank() == 0:
    print("ended with", hvd.size())
