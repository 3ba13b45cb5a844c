"""Models that fail on one rank, for `--model tests.mpi.faulty:NAME`."""

import os
import signal
import time

import keras
import numpy as np

_RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


def _network(features, classes, *extra):
    return keras.Sequential([keras.Input(features), keras.layers.Flatten(), *extra, keras.layers.Dense(classes)])


def raises_while_building(features, classes):
    """Fail on rank 1, while rank 0 waits for it in a broadcast."""
    if _RANK == 1:
        raise ValueError("planted fault while building")
    return _network(features, classes)


class _Drift(keras.layers.Layer):
    """A layer whose weight rank 1 changes by itself."""

    def build(self, shape):
        self.offset = self.add_weight(shape=(), initializer="zeros", name="offset", trainable=True)

    def call(self, inputs, training=False):
        if training and _RANK == 1:
            self.offset.assign_add(1e-3)
        return inputs + self.offset


def drifts(features, classes):
    """Give rank 1 a replica that leaves the others."""
    return _network(features, classes, _Drift(name="drift"))


class _FailLater(keras.layers.Layer):
    """A layer that raises, or stops its process, in the middle of an epoch on one rank."""

    rank = 1

    def fail(self):
        raise RuntimeError("planted fault in step 20")

    def call(self, inputs, training=False):
        import tensorflow as tf

        calls = [0]

        def fail(values):
            calls[0] += 1
            if self.rank == _RANK and calls[0] > 20:
                self.fail()
            return values.astype(np.float32)

        passed = tf.numpy_function(fail, [inputs], tf.float32)
        passed.set_shape(inputs.shape)
        return inputs + 0.0 * tf.stop_gradient(passed)


def raises_in_a_step(features, classes):
    """Fail on rank 1 in the middle of the first epoch, while rank 0 waits in an allreduce."""
    return _network(features, classes, _FailLater())


class _StopLater(_FailLater):
    def fail(self):
        os.kill(os.getpid(), signal.SIGSTOP)


def stops(features, classes):
    """Stop rank 1 in the middle of the first epoch: it lives and does not come."""
    return _network(features, classes, _StopLater())


class _DieLater(_FailLater):
    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)


def lives(features, classes):
    """Pass rows on as the others do, and fail nobody."""
    layer = _FailLater()
    layer.fail = lambda: None
    return _network(features, classes, layer)


def dies(features, classes):
    """Kill rank 1 in the middle of the first epoch."""
    return _network(features, classes, _DieLater())


class _DieBetweenPieces(keras.layers.Layer):
    """A layer that kills rank 1 on the way back in step 18, some time after the gradients of later layers are known."""

    kills = True

    def call(self, inputs, training=False):
        import tensorflow as tf

        calls = [0]

        def fail(upstream):
            calls[0] += 1
            if self.kills and _RANK == 1 and calls[0] > 20:
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            return upstream

        @tf.custom_gradient
        def passed(values):
            return values, lambda upstream: tf.ensure_shape(
                tf.numpy_function(fail, [upstream], tf.float32), values.shape
            )

        return passed(inputs)


def _in_two_pieces(features, classes, layer):
    return _network(features, classes, keras.layers.Dense(600, "relu"), layer, keras.layers.Dense(600, "relu"))


def dies_between_pieces(features, classes):
    """Kill rank 1 when the first piece of a step's gradients, of 1.4 MB, may be summed and the second is not known."""
    return _in_two_pieces(features, classes, _DieBetweenPieces())


def lives_between_pieces(features, classes):
    """Be the same network and fail nobody."""
    layer = _DieBetweenPieces()
    layer.kills = False
    return _in_two_pieces(features, classes, layer)


class _StopFirst(_StopLater):
    rank = 0


class _DieThird(_DieLater):
    rank = 2


def stops_and_dies(features, classes):
    """Stop rank 0 and kill rank 2 in the same step: the others wait for the lower number first."""
    return _network(features, classes, _DieThird() if _RANK == 2 else _StopFirst())


def hangs_up(features, classes):
    """End rank 1 without a word, as the kernel's out-of-memory killer does."""
    if _RANK == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), 9)
    return _network(features, classes)
