"""Seconds in a fitting unit, and digits that mean something."""

import pytest

from harness.analysis import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (4.2e-5, "42.0 µs"), (0.3124, "312 ms"), (4.206, "4.21 s"), (125, "2 min 05 s"), (3840, "1 h 04 min")],
)
def test_seconds_are_told_in_a_fitting_unit(value: float, text: str) -> None:
    assert units.seconds(value).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (0.012345, "0.0123"), (float("nan"), "–"), (1, "1.00")]
)
def test_significant_digits(value: float, text: str) -> None:
    assert units.significant(value) == text
