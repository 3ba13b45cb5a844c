"""Random numbers of a divided batch are a rank's part of what one process draws."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.batch_rows import Place
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.divided_random_numbers import ScriptDraws
from harness.transparent.probe.gradient_probe import GradientProbe
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed
from tests.labs.sentences import refuses


def drawn(kind, rows):
    shape, seed = (rows, 3, 5), (7, 9)
    if kind == "dropout":
        return tf.nn.experimental.stateless_dropout(tf.ones(shape), 0.5, seed)
    if kind == "normal":
        return tf.random.stateless_normal(shape, seed)
    return tf.random.stateless_uniform(shape, seed, 0, 100, kind)


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "int32", "int64", "normal", "dropout"])
def test_a_rank_draws_its_rows_part_of_what_one_process_draws(kind):
    whole, compiled = drawn(kind, 10), tf.function(partial(drawn, kind))
    place = Place(4, 3, 10, 3)
    rows = SimpleNamespace(place=lambda: place)
    loop = DatasetLoop(dataset=None, lines=(), is_observed=False)
    runtime = alike_runtime(rank=1)
    runtime.rows, runtime.loop = rows, loop
    with installed(ScriptDraws(runtime)):
        np.testing.assert_array_equal(drawn(kind, 3), whole[4:7])
        place = Place(tf.constant(6), tf.constant(4), tf.constant(10), None)  # known when it runs
        np.testing.assert_array_equal(compiled(tf.constant(4)), whole[6:])


# Draws that do not follow from a row's place ask for whole batches.


def gamma():
    return tf.random.gamma([4], 1.0)


def normal():
    return tf.random.normal([4])


@pytest.fixture
def runtime():
    """A rank whose loop has taken its first batch, of 4 rows, whole."""
    known = alike_runtime()
    known.loop = DatasetLoop(dataset=None, lines=(), batch=tf.ones([4]))
    known.rows.present_rows = 4
    with installed(ScriptDraws(known)):
        yield known


def test_a_loop_that_draws_otherwise_of_its_first_batch_gets_whole_batches(runtime):
    gamma()
    assert "test_divided_random_numbers.py" in runtime.loop.why_whole


def test_a_loop_that_draws_by_rows_outside_a_graph_is_not_tried_with_parts(runtime):
    normal()
    assert not runtime.loop.why_whole
    assert runtime.loop.why_untried


def test_a_step_that_is_seen_by_a_probe_to_draw_otherwise_gets_whole_batches(runtime):
    runtime.collectives.trial.probe = GradientProbe()
    gamma()
    assert len(runtime.collectives.trial.probe.whole_for) == 1


def test_a_draw_of_parts_of_a_batch_is_refused_where_one_process_would_draw_otherwise(runtime):
    runtime.loop.is_divided = True
    runtime.rows.set(2, (0, 4))
    with refuses("random numbers", "--unjudged", "test_divided_random_numbers.py"):
        gamma()


def test_a_draw_is_left_alone_where_nothing_is_compared_and_in_a_data_set():
    known = alike_runtime(unjudged=True)
    known.loop = DatasetLoop(dataset=None, lines=(), batch=tf.ones([4]))
    with installed(ScriptDraws(known)):
        gamma()
    assert not known.loop.why_whole
    known = alike_runtime()
    known.loop = DatasetLoop(dataset=None, lines=(), batch=tf.ones([4]))
    with installed(ScriptDraws(known)):
        assert len(list(tf.data.Dataset.range(3).map(lambda number: gamma()))) == 3
    assert not known.loop.why_whole
