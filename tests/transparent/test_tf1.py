"""TensorFlow-1 sessions: what is fed is divided, and numbers that a run returns are of all ranks' rows."""

import numpy as np
import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.transparent.gradients import GradientAverager
from harness.transparent.patch import Refused
from harness.transparent.tf1 import Sessions, SessionVariable, operation_kinds, run_fed, slice_rows
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed

v1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def sessions(rank=0, **words):
    runtime = alike_runtime(rank, **words)
    return runtime, Sessions(runtime, GradientAverager(runtime))


def test_what_is_fed_is_divided_and_its_place_is_told(graph):
    rows = v1.placeholder(tf.float32, [None, 1], name="rows")
    rate = v1.placeholder(tf.float32, [], name="rate")
    runtime, patched = sessions(rank=1)
    feed, count = patched.divide(graph, {rows: [[1.0], [2.0], [3.0]], rate: 0.5})
    assert count == 2
    assert feed[rows].ravel().tolist() == [2.0, 3.0]
    assert feed[rate] == 0.5
    assert feed[graph.get_tensor_by_name("harness_rows:0")] == 2.0
    assert runtime.divided == 1


def test_a_run_that_is_fed_no_batch_counts_once(graph):
    fixed = v1.placeholder(tf.float32, [4, 1], name="fixed")
    for rank, rows in ((0, 1), (1, 0)):
        runtime, patched = sessions(rank=rank)
        feed, count = patched.divide(graph, {fixed: np.zeros((4, 1))})
        assert count == rows
        assert runtime.mixes
        assert feed[fixed].shape == (4, 1)


def test_losses_of_a_run_are_weighted_by_rows_and_other_values_stay():
    runtime, patched = sessions()
    runtime.collectives.gather = lambda value, label: [value, (3, np.array([6.0]))]
    loss, step, name = patched.average([np.float32(2.0), np.int64(7), "word"], 1)
    assert loss == pytest.approx((1 * 2.0 + 3 * 6.0) / 4)
    assert loss.dtype == np.float32
    assert (step, name) == (7, "word")


def test_a_rank_without_rows_adds_no_nan():
    runtime, patched = sessions()
    runtime.collectives.gather = lambda value, label: [value, (2, np.array([6.0]))]
    assert patched.average(np.float64("nan"), 0) == 6.0


def test_weights_cannot_be_averaged_instead(graph):
    weight = v1.get_variable("weight", [1])
    _, patched = sessions(sync="weights:2")
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    with installed(patched), pytest.raises(Refused):
        optimizer.apply_gradients([(tf.ones([1]), weight)])


def test_gradients_inside_a_compiled_function_are_refused():
    _, patched = sessions()
    optimizer = v1.train.GradientDescentOptimizer(0.1)

    @tf.function
    def step():
        with pytest.raises(Refused):
            optimizer.compute_gradients(tf.constant(1.0))

    with installed(patched):
        step()


def test_a_placeholder_that_is_not_fed_is_named(graph):
    label = v1.placeholder(tf.float32, [None], name="label")
    total = tf.reduce_sum(label)
    with v1.Session() as session, pytest.raises(UserError) as refused:
        run_fed(session.run, total)
    assert "label" in str(refused.value)


def test_the_value_of_a_closed_sessions_variable_is_the_last_one_seen(graph):
    weight = v1.get_variable("weight", initializer=np.float32([1.0, 2.0]))
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    held = SessionVariable(weight, session, v1.Session.run)
    held.assign(np.float32([3.0, 4.0]))
    assert held.numpy().tolist() == [3.0, 4.0]
    session.close()
    assert held.numpy().tolist() == [3.0, 4.0]


def test_what_an_operation_does_is_known_by_its_graph(graph):
    weight = v1.get_variable("weight", [1])
    assign = weight.assign([1.0])
    mean = tf.identity(weight, name="mean")
    assert operation_kinds(assign.op, set()) == {"writes"}
    assert operation_kinds(tf.add(mean, 1.0).op, {"mean"}) == {"trains"}


def test_a_slice_is_of_every_array():
    assert {key: value.tolist() for key, value in slice_rows({"x": np.arange(4)}, 1, 3).items()} == {"x": [1, 2]}


def test_what_a_session_reads_while_it_is_written_is_not_compared():
    """TensorFlow reads a count of steps before or after the same run raises it; a loss follows from what is fed."""
    with tf.Graph().as_default():
        inputs = v1.placeholder(tf.float32, [None, 1])
        loss = tf.reduce_mean(inputs @ v1.get_variable("kernel", [1, 1]))
        step = v1.train.get_or_create_global_step()
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        assert "fed" in operation_kinds(loss.op, set()) and "fed" in operation_kinds(train, set())
        assert "fed" not in operation_kinds(tf.convert_to_tensor(step).op, set())
