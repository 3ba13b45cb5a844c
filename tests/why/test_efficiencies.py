"""Efficiencies of launches in turns: other work in some rounds is no part of them."""

from pathlib import Path

import pytest

from harness.why.explanation import explain_sweep
from tests.labs.factories import write_study
from tests.labs.interference import STEP_S, WIRE_S, write_block


def factors(study: Path, met: range) -> dict[str, float]:
    """Return the efficiencies on two ranks of three blocks; other work meets so many rounds of the first two."""
    for repeat in range(3):
        write_block(study, repeat, met=met if repeat < 2 else range(0))
    write_study(study)
    (_, two) = explain_sweep(study).efficiencies
    return {name: metric.value for name, metric in two.metrics.items()}


def test_interference_in_some_rounds_is_no_part_of_the_efficiencies(tmp_path: Path) -> None:
    quiet = factors(tmp_path / "quiet", range(0))
    assert quiet["load balance"] == pytest.approx(1, abs=0.005)
    assert quiet["transfer efficiency"] == pytest.approx(STEP_S / (STEP_S + WIRE_S), abs=0.01)
    met = factors(tmp_path / "met", range(5, 25))
    assert met == pytest.approx(quiet, abs=0.01)
