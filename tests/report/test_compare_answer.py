"""What the sides of a comparison are called."""

from dataclasses import replace

from harness.regression.measurement import state_names
from harness.report.compare_answer import side_names
from harness.schema.presets import resolve
from tests.labs.histories import make_measurement, make_summary

MNIST = {"dataset": "mnist", "model": "dnn"}


def test_states_that_differ_in_versions_only_have_names_of_their_own() -> None:
    one = make_measurement([make_summary(1, 0, 1.0)])
    other = replace(one, software=replace(one.software, code="x" * 25, tensorflow="2.20.0"))
    first, second = state_names([one, other])
    assert first != second and "tensorflow 2.20.0" in second
    assert state_names([one]) == (one.state,)


def test_sides_are_called_by_what_differs_in_their_settings() -> None:
    plain, averaging = (resolve(**MNIST, sync=sync) for sync in ("gradients", "weights:epoch"))
    sides = [replace(make_measurement([make_summary(1, 0, 1.0)]), workload=each) for each in (plain, averaging)]
    assert side_names(["mnist-dnn-default-strong-c34ef8b4", "main"], sides) == ("gradients", "main")
    assert side_names(["one", "other"], sides[:1] * 2) == ("one", "other")
