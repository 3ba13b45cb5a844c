"""Means over rows, sums over rows and neither are told apart by a batch with every row twice."""

import pytest
import tensorflow as tf

from harness.transparent.probe.gradient_probe import DoubledBatch, GradientProbe, Trial


@pytest.mark.parametrize(
    ("label", "doubled", "verdict"),
    [
        ("gradients", [1.0, 2.0], False),
        ("gradients", [2.0, 4.0], True),
        ("gradients", [7.0, 14.0], None),
        ("reported numbers", [7.0, 14.0], False),
        ("gradients", [0.0, 0.0], False),
    ],
)
def test_the_length_of_the_doubled_batchs_numbers_tells_what_they_are(label, doubled, verdict):
    assert DoubledBatch.of(label, [tf.constant(doubled)], [tf.constant([1.0, 2.0])]).is_sum() is verdict


@pytest.mark.parametrize(("factor", "independent", "summed"), [(1, True, False), (2, True, True), (9, False, False)])
def test_a_trial_concludes_what_the_gradients_of_a_variable_are(factor, independent, summed):
    trial = Trial()
    trial.active = True
    variable = tf.Variable([1.0, 2.0])
    owner = trial.owner(variable)
    flag = trial.flag(owner)
    trial.observe(owner, "gradients", [factor * variable], [variable])
    assert not bool(flag)
    assert trial.conclude(lambda value: [value]) == independent
    assert trial.is_sum(owner) == summed == trial.found_sum
    assert bool(trial.flag(owner)) == summed  # also in graphs that were built before
    assert not trial.active


def test_a_number_belongs_to_the_training_that_returns_it():
    trial = Trial()
    variable, first, second = tf.Variable(1.0), object(), object()
    with trial.of(first):
        owner = trial.owner(variable)
        trial.note(owner, True)
        assert trial.owner(variable) is owner
    with trial.of(second):
        assert not trial.is_sum(trial.owner(variable))
    assert trial.owner(variable) is variable
    assert trial.sums


def test_the_gradient_of_a_part_goes_on_with_the_value_of_the_whole_batch():
    whole = GradientProbe()
    whole.taken("owner", [tf.constant(3.0)])
    part = GradientProbe(whole=whole)
    assert [float(value) for value in part.taken("owner", [tf.constant(1.0)])] == [3.0]
    assert [float(value) for value in part.of("owner")] == [1.0]
