"""What the sides of a comparison are called."""

from dataclasses import replace

from harness.regression.measurement import state_names
from tests.labs.histories import make_measurement, make_summary


def test_states_that_differ_in_versions_only_have_names_of_their_own() -> None:
    one = make_measurement([make_summary(1, 0, 1.0)])
    other = replace(one, software=replace(one.software, code="x" * 25, tensorflow="2.20.0"))
    first, second = state_names([one, other])
    assert first != second and "tensorflow 2.20.0" in second
    assert state_names([one]) == (one.state,)
