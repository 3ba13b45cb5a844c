"""Results of metrics are of the rows of all ranks: states are added up, the script's own get all rows."""

import keras
import pytest
import tensorflow as tf

from harness.schema.record_notes import Note, NoteCode
from harness.transparent.collectives import Scalars
from harness.transparent.keras_metrics import Metrics, _rows, _summed_states, needs_all_rows
from tests.labs.alike_ranks import alike_runtime

metrics = keras.metrics


class Largest(metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, values, sample_weight=None):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(values) + len(values)))

    def result(self):
        return self.value


@pytest.fixture
def ranks():
    runtime = alike_runtime()
    return runtime, Metrics(runtime, Scalars(runtime.collectives))


def updated(patched, metric, *args, **words):
    patched._update(type(metric).update_state, metric, *args, **words)
    return patched._result(type(metric).result, metric)


@pytest.mark.parametrize(
    ("metric", "all_rows"),
    [
        (metrics.MeanSquaredError(), False),
        (metrics.AUC(), False),
        (metrics.PearsonCorrelation(), True),
        (metrics.MeanMetricWrapper(lambda y, p: p), True),
        (Largest(), True),
    ],
)
def test_only_what_is_not_a_sum_over_rows_needs_all_of_them(metric, all_rows):
    assert needs_all_rows(metric) == all_rows
    assert bool(_summed_states(metric)) != all_rows


def test_a_sum_is_of_all_ranks_and_this_ranks_state_stays(ranks):
    runtime, patched = ranks
    metric = metrics.Sum()
    with runtime.rows.batch_of(None, 2):
        assert float(updated(patched, metric, tf.constant([1.0, 2.0]))) == 6.0
    assert float(metric.total) == 3.0


def test_a_mean_over_ranks_that_are_alike_is_this_ranks(ranks):
    runtime, patched = ranks
    with runtime.rows.batch_of(None, 2):
        assert float(updated(patched, metrics.Mean(), tf.constant([1.0, 2.0]))) == 1.5


def test_a_metric_of_the_scripts_own_is_given_the_rows_of_all_ranks(ranks):
    runtime, patched = ranks
    with runtime.rows.batch_of(None, 2):
        assert float(updated(patched, Largest(), tf.constant([1.0, 2.0]))) == 2.0 + 4
    assert runtime.notes == [Note(code=NoteCode.METRIC_OF_ALL_ROWS, values={"name": "largest"})]


def test_rows_that_do_not_count_leave_a_metric_as_it_was(ranks):
    runtime, patched = ranks
    metric = metrics.Sum()
    with runtime.rows.batch_of(tf.constant(0.0), 1, (0, 5)):
        assert float(updated(patched, metric, tf.constant([7.0]))) == 0.0


def test_quietly_nothing_is_exchanged(ranks):
    runtime, patched = ranks
    with runtime.quietly():
        assert float(updated(patched, metrics.Sum(), tf.constant([1.0]))) == 1.0


def test_the_rows_of_arguments_are_those_of_the_first_tensor():
    assert _rows(((None, 3.0), {"y": tf.ones([4, 2])})) == 4
    assert _rows((3.0,)) is None
