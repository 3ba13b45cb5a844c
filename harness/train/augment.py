"""Mirror images at random, the same ones whatever the number of ranks."""

import tensorflow as tf

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
