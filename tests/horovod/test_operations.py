"""Horovod's collectives as operations, eager and in graphs, with their gradients."""

import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.horovod import operations as hvd
from harness.horovod.process_sets import ProcessSet

pytestmark = pytest.mark.usefixtures("two_ranks")
ROWS = [[1.0, 2.0], [3.0, 4.0]]


def values(function):
    """Return what `function` gives eagerly and in a graph, with its gradient, which must agree."""
    outcomes = []
    for call in (function, tf.function(function)):
        tensor = tf.constant(ROWS)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            result = call(tensor)
        outcomes.append((result.numpy().tolist(), tape.gradient(result, tensor).numpy().tolist()))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def times(factor):
    return [[factor * number for number in row] for row in ROWS]


def ones(factor):
    return [[factor] * 2] * 2


@pytest.mark.parametrize(
    ("function", "result", "gradient"),
    [
        (lambda t: hvd.allreduce(t), ROWS, ones(1.0)),
        (lambda t: hvd.allreduce(t, op=hvd.Sum), times(2.0), ones(2.0)),
        (lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5), ROWS, ones(1.0)),
        (lambda t: hvd.allgather(t), ROWS * 2, ones(1.0)),
        (lambda t: hvd.broadcast(t, 0), ROWS, ones(1.0)),
        (lambda t: hvd.broadcast(t, 1), ROWS, ones(0.0)),
    ],
)
def test_results_and_gradients_are_the_same_in_and_outside_of_graphs(function, result, gradient):
    assert values(function) == (result, gradient)


def test_a_reduction_is_scattered_by_rows():
    assert hvd.reducescatter(tf.constant(ROWS), op=hvd.Sum).numpy().tolist() == [[2.0, 4.0]]


def test_slices_are_gathered_and_averaged():
    slices = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([1]), tf.constant([2, 1]))
    gathered, dense = hvd.grouped_allreduce([slices, tf.constant(3.0)])
    assert gathered.values.numpy().tolist() == [[2.0], [2.0]]
    assert float(dense) == 3.0
    with pytest.raises(NotImplementedError):
        hvd.allreduce(slices, op=hvd.Max)


def test_the_older_word_for_the_operation_is_known_and_not_together_with_the_newer():
    assert hvd.operation(None, False) == hvd.Sum
    assert hvd.operation(None, None) == hvd.operation(None, True) == hvd.Average
    with pytest.raises(ValueError):
        hvd.operation(hvd.Sum, True)


def test_adasum_is_of_all_ranks():
    with pytest.raises(NotImplementedError):
        hvd.allreduce(tf.constant(ROWS), op=hvd.Adasum, process_set=ProcessSet([0]))


def test_nothing_is_compiled_by_xla():
    with pytest.raises(UserError):
        tf.function(lambda: hvd.allreduce(tf.constant(1.0)), jit_compile=True)()


def test_ranks_join_and_meet():
    hvd.barrier()
    assert hvd.join() == 1
