"""Results of metrics are of the rows of all ranks: states are added up, the script's own get all rows."""

import keras
import pytest
import tensorflow as tf

from harness.schema.record_notes import Note, NoteCode
from harness.transparent.collectives import Scalars
from harness.transparent.keras_metrics import Metrics, needs_all_rows, rows_of_arguments
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed

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
def runtime():
    """Return the state of a rank whose metrics are of all ranks' rows."""
    runtime = alike_runtime()
    with installed(Metrics(runtime, Scalars(runtime.collectives))):
        yield runtime


def updated(metric, *args, **words):
    metric.update_state(*args, **words)
    return metric.result()


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


def test_a_sum_is_of_all_ranks_and_this_ranks_state_stays(runtime):
    metric = metrics.Sum()
    with runtime.rows.batch_of(None, 2):
        assert float(updated(metric, tf.constant([1.0, 2.0]))) == 6.0
    assert float(metric.total) == 3.0


def test_a_mean_over_ranks_that_are_alike_is_this_ranks(runtime):
    with runtime.rows.batch_of(None, 2):
        assert float(updated(metrics.Mean(), tf.constant([1.0, 2.0]))) == 1.5


def test_a_metric_of_the_scripts_own_is_given_the_rows_of_all_ranks(runtime):
    with runtime.rows.batch_of(None, 2):
        assert float(updated(Largest(), tf.constant([1.0, 2.0]))) == 2.0 + 4
    assert runtime.notes == [Note(code=NoteCode.METRIC_OF_ALL_ROWS, values={"name": "largest"})]


def test_rows_that_do_not_count_leave_a_metric_as_it_was(runtime):
    metric = metrics.Sum()
    with runtime.rows.batch_of(tf.constant(0.0), 1, (0, 5)):
        assert float(updated(metric, tf.constant([7.0]))) == 0.0


def test_quietly_nothing_is_exchanged(runtime):
    with runtime.quietly():
        assert float(updated(metrics.Sum(), tf.constant([1.0]))) == 1.0


def test_the_rows_of_arguments_are_those_of_the_first_tensor():
    assert rows_of_arguments(((None, 3.0), {"y": tf.ones([4, 2])})) == 4
    assert rows_of_arguments((3.0,)) is None
