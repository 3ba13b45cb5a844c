"""Horovod's collectives as operations, eager and in graphs, with their gradients."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.comm.world import FAULT_TOLERANCE
from harness.horovod import operations as hvd
from harness.horovod.operations import NativeSum
from harness.horovod.process_sets import ProcessSet, current_ranks

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


@pytest.fixture
def no_joins(two_ranks, monkeypatch):
    """The script has no `join`."""
    monkeypatch.setattr(current_ranks(), "joins", False)


def native_in_graph(op, *specifications):
    """Return which native sum tensors of these types and shapes may take in a graph."""
    answers = []

    @tf.function(input_signature=specifications)
    def ask(*tensors):
        answers.append(hvd.native_sum(op, tensors))

    ask.get_concrete_function()
    return answers[0]


FLOATS = tf.TensorSpec([2], tf.float32)
HALVES = tf.TensorSpec([3, 2], tf.float16)


@pytest.mark.usefixtures("no_joins")
@pytest.mark.parametrize(
    ("op", "specifications", "native"),
    [
        (hvd.Average, [FLOATS, HALVES], NativeSum.SHARED),
        (hvd.Sum, [FLOATS], NativeSum.SHARED),
        (hvd.Sum, [FLOATS, tf.TensorSpec([None], tf.float32)], NativeSum.OWN),
        (hvd.Sum, [FLOATS, tf.TensorSpec([2], tf.int32)], NativeSum.NONE),
        (hvd.Max, [FLOATS], NativeSum.NONE),
    ],
)
def test_a_group_is_summed_natively_by_its_operation_types_and_shapes(op, specifications, native, monkeypatch):
    monkeypatch.setattr(hvd, "find_library", lambda: SimpleNamespace(library="a library"))
    assert native_in_graph(op, *specifications) is native


@pytest.mark.usefixtures("no_joins")
def test_what_is_compiled_for_todays_ranks_is_not_taken_where_ranks_may_fail(monkeypatch):
    monkeypatch.setenv(FAULT_TOLERANCE, "1")
    assert native_in_graph(hvd.Average, FLOATS) is NativeSum.OWN


@pytest.mark.usefixtures("no_joins")
def test_a_call_is_not_shared_at_once_or_without_a_library(monkeypatch):
    assert hvd.native_sum(hvd.Average, [tf.constant([1.0])]) is NativeSum.OWN
    monkeypatch.setattr(hvd, "find_library", lambda: SimpleNamespace(library=None))
    assert native_in_graph(hvd.Average, FLOATS) is NativeSum.OWN


def test_a_script_that_joins_is_summed_by_python():
    assert native_in_graph(hvd.Average, FLOATS) is NativeSum.NONE
