"""Trains by an optimizer with BackupAndRestore; killed in the third epoch where the folder has a file called `kill`."""

import hashlib
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np


class Killed(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and Path("kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x, y = random.normal(size=(200, 8)).astype("float32"), random.integers(0, 3, 200)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu")])
model.add(keras.layers.BatchNormalization())
model.add(keras.layers.Dense(3))
model.compile(sys.argv[1], keras.losses.SparseCategoricalCrossentropy(from_logits=True))
callbacks = [keras.callbacks.BackupAndRestore("backup"), Killed()]
history = model.fit(x, y, batch_size=32, epochs=4, shuffle=False, callbacks=callbacks, verbose=0)
weights = b"".join(weight.tobytes() for weight in model.get_weights())
print("EPOCHS", history.epoch, "WEIGHTS", hashlib.sha256(weights).hexdigest(), "LEFT", Path("backup").exists())
