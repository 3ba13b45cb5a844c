"""Arrays of one `fit`: the ranks have each row of a batch once, and tensors stay in host memory."""

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.fused.fused_arrays import FusedArrays, all_dense, gathered, is_repeated, row_orders


@pytest.mark.parametrize(("size", "share"), [(1, None), (2, 2.0)])
def test_a_last_batch_with_fewer_rows_is_a_stretch_of_its_own(size, share):
    arrays = FusedArrays(None, row_orders(10, 4, False), 10, 4, 0, size, even=size == 1)
    (whole, whole_share), (last, _) = arrays.stretches(0, arrays.steps)
    assert (whole.shape, last.shape) == ((2, 4 // size), (1, 2 // size))
    assert whole_share.rows == share
    assert arrays.steps == 3


def test_rows_are_gathered_in_the_structure_of_a_batch():
    sources = (tf.constant([[1.0], [2.0], [3.0]]), {"y": tf.constant([4, 5, 6])})
    x, named = gathered(sources, tf.constant([2, 0]))
    assert np.ravel(x).tolist() == [3.0, 1.0]
    assert named["y"].numpy().tolist() == [6, 4]


def test_only_dense_tensors_are_looped_over():
    sparse = tf.sparse.from_dense([[1.0]])
    assert not all_dense([sparse])
    assert not all_dense([np.ones(2)])
    assert all_dense([tf.ones([2])]) != bool(tf.config.list_logical_devices("GPU"))


def test_a_shuffle_without_a_seed_is_another_in_every_epoch():
    tf.random.set_seed(None)
    drawn_orders = row_orders(50, 5, True)
    arrays = FusedArrays(None, drawn_orders, 50, 5, 0, 1)
    orders = set()
    for _ in range(3):
        arrays.shuffle()
        orders.add(tuple(arrays.order.numpy()))
    assert len(orders) == 3
    assert not is_repeated(drawn_orders)
