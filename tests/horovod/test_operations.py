"""Horovod's collectives as operations, eager and in graphs, with their gradients."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.horovod import operations as hvd
from harness.horovod.operations import Compression, NativeSum

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
        (lambda t: hvd.allgather(t), ROWS * 2, ones(1.0)),
        (lambda t: hvd.broadcast(t, 0), ROWS, ones(1.0)),
        (lambda t: hvd.broadcast(t, 1), ROWS, ones(0.0)),
    ],
)
def test_results_and_gradients_are_the_same_in_and_outside_of_graphs(function, result, gradient):
    assert values(function) == (result, gradient)


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


@pytest.mark.parametrize("words", [{"process_set": None}, {"prescale_factor": 0.5}, {"postscale_factor": 2.0}])
def test_sets_of_ranks_and_scales_are_refused(words):
    with pytest.raises(UserError):
        hvd.allreduce(tf.constant(ROWS), **words)


def test_nothing_is_compiled_by_xla():
    with pytest.raises(UserError):
        tf.function(lambda: hvd.allreduce(tf.constant(1.0)), jit_compile=True)()


def test_ranks_meet():
    hvd.barrier()
    assert hvd.join() == 1


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


def test_a_call_is_not_shared_at_once_or_without_a_library(monkeypatch):
    assert hvd.native_sum(hvd.Average, [tf.constant([1.0])]) is NativeSum.OWN
    monkeypatch.setattr(hvd, "find_library", lambda: SimpleNamespace(library=None))
    assert native_in_graph(hvd.Average, FLOATS) is NativeSum.OWN


def test_variables_of_both_libraries_get_the_values_and_words_are_left_out():
    variables = [tf.Variable([1.0]), keras.Variable([2.0]), tf.Variable("word")]
    hvd.broadcast_variables(variables, 1)
    assert [float(value[0]) for value in hvd.broadcast_(variables[:2], 0)] == [1.0, 2.0]
    hvd.broadcast_variables([], 0)


def test_a_graphs_variables_are_broadcast_when_its_session_is_made():
    hook = hvd.BroadcastGlobalVariablesHook(0)
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("weight", initializer=[3.0])
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(weight).tolist() == [3.0]


def test_without_a_graph_there_are_no_global_variables():
    with pytest.raises(RuntimeError):
        hvd.BroadcastGlobalVariablesHook(0).begin()


def test_an_object_is_the_roots():
    assert hvd.broadcast_object({"epoch": 3}, root_rank=1) == {"epoch": 3}


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
