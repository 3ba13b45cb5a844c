"""How tensors travel."""

import tensorflow as tf

from harness.horovod.compression import Compression


def test_numbers_travel_as_float16_and_come_back_in_their_type():
    sent, context = Compression.fp16.compress(tf.constant([1.5], tf.float64))
    assert sent.dtype == tf.float16
    assert Compression.fp16.decompress(sent, context).dtype == tf.float64


def test_integers_and_what_is_not_compressed_travel_as_they_are():
    numbers = tf.constant([3])
    assert Compression.fp16.compress(numbers)[0] is numbers
    sent, context = Compression.none.compress(numbers)
    assert sent is numbers
    assert Compression.none.decompress(sent, context) is numbers
