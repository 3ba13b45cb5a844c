"""A model that keeps one rank busy in every step, for `--model tests.mpi.slow:rank_one_lags`."""

import os
import time

import keras
import numpy as np

_RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
_LAG_S = 0.002


class _Lag(keras.layers.Layer):
    """Passes its input on, on rank 1 after a busy loop."""

    def call(self, inputs, training=False):
        import tensorflow as tf

        def burn(values):
            end = time.perf_counter() + (_LAG_S if _RANK == 1 else 0.0)
            while time.perf_counter() < end:
                pass
            return values.astype(np.float32)

        passed = tf.numpy_function(burn, [inputs], tf.float32)
        passed.set_shape(inputs.shape)
        return inputs + 0.0 * tf.stop_gradient(passed)


def rank_one_lags(features, classes):
    """Return a small network whose step takes rank 1 two milliseconds longer."""
    return keras.Sequential([keras.Input(features), keras.layers.Flatten(), _Lag(), keras.layers.Dense(classes)])
