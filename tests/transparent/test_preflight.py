"""What ranks compare before the first step."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness.base.errors import SharedError, UserError
from harness.transparent.preflight import check_rows, compare, model_facts


def two_ranks(change):
    """Return a runtime whose rank 1 has what `change` makes of rank 0's value."""
    return SimpleNamespace(collectives=SimpleNamespace(gather=lambda value, label: [value, change(value)]))


def test_equal_facts_are_no_fault():
    compare(two_ranks(dict), {"variables": "2"})


def test_other_facts_end_all_ranks():
    with pytest.raises(SharedError):
        compare(two_ranks(lambda facts: {**facts, "variables": "3"}), {"variables": "2"})


def test_a_fact_that_one_rank_lacks_is_a_difference():
    with pytest.raises(SharedError):
        compare(two_ranks(lambda facts: {}), {"variables": "2"})


def test_the_same_rows_may_be_rounded_differently():
    rows = np.arange(12.0).reshape(4, 3)
    for source in (rows, tf.data.Dataset.from_tensor_slices(rows).batch(2)):
        check_rows(two_ranks(lambda measures: [measure * (1 + 1e-6) for measure in measures]), source)


@pytest.mark.parametrize("change", [lambda measures: [2 * measure for measure in measures], lambda measures: []])
def test_other_rows_are_refused(change):
    with pytest.raises(UserError):
        check_rows(two_ranks(change), np.arange(12.0).reshape(4, 3))


def test_the_order_of_rows_is_part_of_what_is_compared():
    rows = np.arange(12.0).reshape(4, 3)
    measures = []

    def gather(rank_measures, label):
        measures.extend(rank_measures)
        return [rank_measures]

    for source in (rows, rows[::-1]):
        check_rows(SimpleNamespace(collectives=SimpleNamespace(gather=gather)), source)
    assert measures[0] != measures[1]


def test_a_model_is_described_by_its_optimizer_and_variables():
    facts = model_facts(keras.optimizers.SGD(0.5), [tf.Variable(tf.zeros([2, 3]), name="kernel")])
    assert facts["optimizer"] == "SGD"
    assert facts["variables"] == "1"
    assert "(2, 3) float32" in facts["variable 0"]
