"""A rank's part of a batch: which rows, where they are, and how much they count."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.batch_rows import BatchShare, Place, Rows, divide, together


@pytest.fixture
def rows() -> Rows:
    """Return the rows of rank 1 of 3."""
    return Rows(1, 3, SimpleNamespace(present=False))


@pytest.mark.parametrize("total", [1, 2, 3, 7, 12])
def test_the_parts_of_a_batch_are_its_rows_in_order(total):
    batch = tf.range(total)
    shares = [divide(batch, rank, 3) for rank in range(3)]
    counted = [share.data if share.rows is None else share.data[: int(share.rows)] for share in shares]
    np.testing.assert_array_equal(tf.concat(counted, 0), np.arange(total))
    assert all(len(share.data) >= 1 for share in shares)


def test_a_part_whose_length_is_known_late_is_the_same():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def divided(batch: tf.Tensor) -> BatchShare:
        return divide(batch, 1, 3)

    np.testing.assert_array_equal(divided(tf.range(7)).data, divide(tf.range(7), 1, 3).data)


def test_the_place_of_a_step_is_known_in_a_graph_too(rows):
    """It comes with the batch as a tensor, which a graph cannot unpack."""

    @tf.function(input_signature=[tf.TensorSpec([2], tf.int64)])
    def place_of(place: tf.Tensor) -> Place:
        with rows.batch_of(tf.constant(2.0), tf.constant(2), place):
            return rows.place()[:3]

    assert [int(number) for number in place_of(tf.constant([2, 7], tf.int64))] == [2, 2, 7]


def test_equal_parts_have_the_place_of_their_rank(rows):
    with rows.batch_of(None, 4):
        assert rows.even
        assert rows.place() == Place(4, 4, 12, 4)
        assert float(rows.count()) == 4
        assert float(rows.weight()) == 1
    assert not rows.even


def test_what_every_rank_has_whole_counts_once(rows):
    first = Rows(0, 3, SimpleNamespace(present=False))
    for rank_rows in (first, rows):
        with rank_rows.counted_once(10):
            assert rank_rows.present_rows == 10
        assert rank_rows.present_rows == 0
    with first.counted_once(10), rows.counted_once(10):
        assert float(first.weight()) == 10
        assert float(rows.weight()) == 0


def test_numbers_of_other_arrays_than_the_batch_count_once(rows):
    rows.set(4, (4, 12))
    with rows.numbers_of(4):
        assert float(rows.weight()) == 4
    with rows.numbers_of(9):
        assert float(rows.weight()) == 0


def test_batches_are_put_together_row_by_row():
    whole = together([{"x": tf.range(2), "scale": 3.0}, {"x": tf.range(2, 5), "scale": 3.0}])
    np.testing.assert_array_equal(whole["x"], np.arange(5))
    assert whole["scale"] == 3.0
