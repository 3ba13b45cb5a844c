"""Means over ranks weighted by rows, and the numbers that a step returns, on the only rank of a launch."""

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.collectives import Scalars, upstream
from tests.labs.lone_rank import lone_collectives


def test_a_mean_over_one_rank_is_its_own_number():
    collectives = lone_collectives()
    with collectives.rows.batch_of(tf.constant(5.0), 5, (0, 5)):
        assert float(collectives.mean([tf.constant(3.0)], "losses")[0]) == 3


def test_a_rank_without_rows_adds_no_infinity():
    collectives = lone_collectives()
    with collectives.rows.batch_of(tf.constant(0.0), 1, (0, 5)):
        assert np.isnan(collectives.mean([tf.constant(np.inf)], "losses")[0])  # 0 of 0 rows, not infinity


def test_rows_of_all_ranks_are_the_ranks_rows_and_their_gradient_flows_back():
    collectives = lone_collectives()
    values = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    with collectives.rows.batch_of(tf.constant(2.0), 2, (0, 2)), tf.GradientTape() as tape:
        rows = collectives.gather_rows([tf.convert_to_tensor(values)], "loss")[0]
        loss = tf.reduce_mean(rows**2)
    np.testing.assert_allclose(rows, values)
    np.testing.assert_allclose(tape.gradient(loss, values), values / 2)


@pytest.mark.parametrize("is_sum", [False, True])
def test_what_a_step_returns_keeps_its_type(is_sum):
    collectives = lone_collectives()
    scalars = Scalars(collectives)

    def step() -> None:
        """Stand for a compiled function."""

    for place in range(2):
        collectives.trial.note(collectives.trial.position(step, place), is_sum)
    collectives.rows.set(4, (0, 4))
    loss, count, rows = scalars.combine((tf.constant(2.5), tf.constant(4), tf.ones([3])), step)
    assert (float(loss), int(count)) == (2.5, 4)
    assert count.dtype == tf.int32
    assert rows.shape == (3,)


def test_what_a_tensor_depends_on_is_found_in_its_graph():
    with tf.Graph().as_default():
        first = tf.constant(1.0, name="first")
        total = tf.add(first, tf.constant(2.0, name="second"), name="total")
        tf.constant(3.0, name="aside")
        assert {op.name for op in upstream([total.op])} == {"first", "second", "total"}
