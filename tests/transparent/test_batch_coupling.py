"""Rows that are independent are told from rows that are mixed by the gradients of a batch and of its parts."""

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.probe.batch_coupling import CouplingTrial, first_part, is_sum, mixes, steady, vector

ROWS = np.arange(1.0, 10.0, dtype=np.float32)


def gradients(of):
    """Return what `of` makes of a batch, its two parts and the batch again."""
    first = first_part(len(ROWS))
    return [np.array([of(part)]) for part in (ROWS, ROWS[:first], ROWS[first:], ROWS)]


def test_a_mean_and_a_sum_over_rows_mix_none():
    assert is_sum(gradients(np.mean), len(ROWS)) is False
    assert is_sum(gradients(np.sum), len(ROWS)) is True


def test_a_maximum_over_rows_mixes_them():
    assert mixes(gradients(lambda rows: rows.max() * rows.min()), len(ROWS), summed=False)
    assert is_sum(gradients(lambda rows: rows.max() * rows.min()), len(ROWS)) is None


def test_a_batch_whose_gradient_varies_more_than_its_parts_is_not_judged():
    noisy = gradients(np.mean)
    noisy[3] = noisy[3] + 10.0
    assert not mixes(noisy, len(ROWS), summed=False)


@pytest.mark.parametrize("rows", [1, 2, 3, 64])
def test_the_first_part_has_a_row(rows):
    assert 1 <= first_part(rows) <= max(1, rows // 3)


def test_sparse_and_missing_gradients_are_part_of_the_vector():
    sparse = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    assert vector([None, sparse, tf.constant([5.0])]).tolist() == [0, 0, 0, 1, 1, 0, 0, 5]


def test_within_a_steady_block_every_row_is_drawn_alike():
    with steady():
        first, second = tf.random.stateless_normal([2, 5], [1, 2]).numpy()
    np.testing.assert_array_equal(first, second)
    drawn = tf.random.stateless_normal([2, 5], [1, 2]).numpy()
    assert not np.array_equal(drawn[0], drawn[1])


@pytest.mark.parametrize(("loss", "mixed"), [(tf.reduce_mean, False), (lambda v: tf.reduce_mean(v) ** 2, True)])
def test_four_steps_of_a_loop_show_whether_its_rows_are_independent_and_change_nothing(loss, mixed):
    weight = tf.Variable(2.0)
    batch = tf.constant(ROWS)
    trial = CouplingTrial(batch=batch, rows=len(ROWS), untrained=[])
    while not trial.done:
        part = trial.begin()
        with tf.GradientTape() as tape:
            value = loss(weight * part)
        trial.take("owner", tape, [weight], [tape.gradient(value, weight)])
        weight.assign_add(0.0)
        trial.end()
    assert trial.verdict(lambda owner: False) == mixed
    assert float(weight) == 2.0


def test_a_batch_of_one_row_has_no_trial():
    assert CouplingTrial(batch=tf.ones([1]), rows=1, untrained=[]).done
