"""The rows of one step as the network takes them: picked by number, mirrored where chance says so, standardised."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from harness.comm.native_library import find_library
from harness.train.shard_data import RankData
from harness.train.step import Floats

_MASK = 0xFFFFFFFF


# Odd constants of xxHash32 (Collet): their products spread close numbers over all 32 bits.
_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)


def flip_salt(seed: int, epoch: int) -> int:
    """Return the 32-bit number that tells the mirrored rows of one epoch from those of another."""
    return (seed * _PRIMES[1] + (epoch + 1) * _PRIMES[2]) & _MASK


def flip(images: tf.Tensor, rows: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
    """Return `images` [rows, height, width, channels] with about every second one mirrored left to right.

    Which ones is a function of the row's number in the whole data set (`rows`, int32 [rows]) and of `salt`
    (uint32, `flip_salt`) alone.
    """
    mixed = tf.cast(rows, tf.uint32) * tf.constant(_PRIMES[0], tf.uint32) + salt
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, tf.constant(15, tf.uint32)))
    mixed *= tf.constant(_PRIMES[1], tf.uint32)
    mirrored = tf.bitwise.right_shift(mixed, tf.constant(31, tf.uint32)) == 1
    return tf.where(mirrored[:, tf.newaxis, tf.newaxis, tf.newaxis], tf.reverse(images, axis=[2]), images)


def prepare_input(rows: tf.Tensor, shift: Floats | None, factor: Floats | None) -> tf.Tensor:
    """Return the network's input float32: `rows` as they are, or (rows - shift) * factor for uint8 images."""
    if shift is None or factor is None:
        return rows
    if shift.size == 1 and not tf.config.list_logical_devices("GPU"):  # there the rows would travel twice a step
        # One pass over the batch instead of three, which a small network feels.
        low, high = (float((value - shift.item()) * factor.item()) for value in (0, 255))
        return tf.quantization.dequantize(tf.bitcast(rows, tf.quint8), low, high, mode="MIN_COMBINED")
    features = rows.shape[1:]
    flat = tf.reshape(tf.cast(rows, tf.float32), [-1, features.num_elements()])  # short rows broadcast slowly
    return tf.reshape((flat - _as_row(shift, features)) * _as_row(factor, features), tf.shape(rows))


def _as_row(values: Floats, features: tf.TensorShape) -> Floats:
    """Return `values`, which broadcast against a row of shape `features`, as float32 [values of a row]."""
    return np.ascontiguousarray(np.broadcast_to(values, tuple(features)), np.float32).ravel()


Batch = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""Takes an order (int32 [steps, rows]), a step's number (int32) and a `flip_salt` (uint32), and returns the network's
input (float32 [rows, *features]) and the labels (int32 [rows]) of that step, for a graph."""


def resident_batch(data: RankData, *, first: int, mirror: bool) -> Batch:
    """Return what makes batches of the rank's rows, kept on the device; row 0 is row `first` of the whole data set.

    The native operation and TensorFlow's own, which are taken on a GPU and where there is no compiler, agree to
    rounding.
    """
    rows = tf.constant(data.train_x)
    library = None if tf.config.list_logical_devices("GPU") else find_library().library
    if library is None or data.train_x.dtype not in (np.uint8, np.float32):
        labels = tf.constant(data.train_y, tf.int64)  # int32 is kept in host memory and would travel in every step

        def plain(order: tf.Tensor, step: tf.Tensor, salt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            numbers = order[step]
            values = tf.gather(rows, numbers)
            if mirror:
                values = flip(values, numbers + first, salt)
            return prepare_input(values, data.shift, data.factor), tf.cast(tf.gather(labels, numbers), tf.int32)

        return plain

    labels = tf.constant(data.train_y)
    none = np.zeros(0, np.float32)
    shift, factor = (none if part is None else _as_row(part, rows.shape[1:]) for part in (data.shift, data.factor))

    def batch(order: tf.Tensor, step: tf.Tensor, salt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs, targets = library.operations.harness_batch(
            rows, labels, order, step, shift, factor, salt, mirror=mirror, first=first
        )
        return inputs, targets

    return batch
