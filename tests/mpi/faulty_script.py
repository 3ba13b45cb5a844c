"""A script in which one rank goes wrong, as the argument says."""

import sys
import time

import keras
import numpy as np
import tensorflow as tf

from harness.comm.world import start_mpi

FAULT = sys.argv[1]
ODD = start_mpi().rank == 1  # launchers' variables say rank 0 on all

keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(640, 8)).astype("float32")
y = (x[:, 0] > 0).astype("float32")
width = 24 if FAULT == "width" and ODD else 16


class Trouble(keras.callbacks.Callback):
    """Sleeps or raises in the middle of the first epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if ODD and batch == 3 and FAULT == "sleeps":
            time.sleep(1e6)
        if ODD and batch == 3 and FAULT == "raises":
            raise RuntimeError("planted fault")


model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss=keras.losses.BinaryCrossentropy(from_logits=True))
if FAULT == "fewer":
    for number in range(20 if ODD else 40):
        batch = tf.random.stateless_normal((32, 8), (number, 1))
        model.train_on_batch(batch, tf.cast(batch[:, :1] > 0, tf.float32))
elif FAULT == "nothing":
    print("no training here:", sys.stdin.read())
else:
    model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[Trouble()])
