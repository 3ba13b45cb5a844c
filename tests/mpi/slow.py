"""Models that keep rank 1 busy, in every step or in some: `--model tests.mpi.slow:rank_one_lags`."""

import os
import time

import keras
import numpy as np

_RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


class _Lag(keras.layers.Layer):
    """Passes its input on, on rank 1 after a busy loop of `lag_s` in every `every`-th call."""

    def __init__(self, lag_s, every=1):
        super().__init__()
        self._lag_s, self._every, self._calls = lag_s, every, 0

    def call(self, inputs, training=False):
        import tensorflow as tf

        def burn(values):
            self._calls += 1
            end = time.perf_counter() + (self._lag_s if _RANK == 1 and self._calls % self._every == 0 else 0.0)
            while time.perf_counter() < end:
                pass
            return values.astype(np.float32)

        passed = tf.numpy_function(burn, [inputs], tf.float32)
        passed.set_shape(inputs.shape)
        return inputs + 0.0 * tf.stop_gradient(passed)


def rank_one_lags(features, classes):
    """Return a small network whose step takes rank 1 ten milliseconds longer."""
    return keras.Sequential([keras.Input(features), keras.layers.Flatten(), _Lag(0.01), keras.layers.Dense(classes)])


def rank_one_stalls(features, classes):
    """Return a small network whose every 50th step takes rank 1 a millisecond longer."""
    return keras.Sequential(
        [keras.Input(features), keras.layers.Flatten(), _Lag(0.001, 50), keras.layers.Dense(classes)]
    )
