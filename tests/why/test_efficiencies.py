"""Efficiencies of launches in turns: other work in some rounds is no part of them."""

import math
from pathlib import Path

import numpy as np
import pytest

from harness.report.answer import Table
from harness.report.explain_answer import explain_answer
from harness.why.explanation import explain_sweep
from tests.labs.factories import write_study
from tests.labs.interference import STEP_S, WIRE_S, meet_all_recorded_rounds, write_block
from tests.labs.sentences import says


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


def test_a_launch_whose_recorded_rounds_were_all_met_is_named_beside_its_efficiencies(tmp_path: Path) -> None:
    for repeat in range(3):
        write_block(tmp_path, repeat)
    meet_all_recorded_rounds(tmp_path, 1)
    write_study(tmp_path)
    explanation = explain_sweep(tmp_path)
    assert [point.met_launches for point in explanation.efficiencies] == [0, 1]
    answer = explain_answer(explanation, (), "harness explain")
    (table,) = next(section.elements for section in answer.sections if section.title == "Efficiencies")
    assert isinstance(table, Table)
    says(table.note, "2 ranks", "1 launch of 3", "interference")


def test_every_factor_has_an_interval_over_blocks_and_factors_multiply_up(tmp_path: Path) -> None:
    for repeat in range(3):
        write_block(tmp_path, repeat)
    write_study(tmp_path)
    explanation = explain_sweep(tmp_path)
    _, two = explanation.efficiencies
    for name in ("load balance", "serialisation efficiency", "transfer efficiency", "computation scaling"):
        interval = two.metrics[name].interval
        assert interval is not None and interval.low <= two.metrics[name].value <= interval.high <= 1.2, name
    values = {name: metric.value for name, metric in two.metrics.items()}
    whole = values["load balance"] * values["communication efficiency"] * values["computation scaling"]
    assert values["global efficiency"] == pytest.approx(whole, rel=1e-12)
    efficiency = explanation.scaling.points[-1].efficiency
    assert efficiency is not None
    assert values["global efficiency"] == pytest.approx(efficiency, rel=0.01)


@pytest.mark.slow
def test_intervals_over_blocks_hold_the_planted_transfer_efficiency(tmp_path: Path) -> None:
    """Blocks whose sums differ by 30 % (standard deviation of the logarithm)."""
    held = 0
    draws = 60
    random = np.random.default_rng(8)
    truth = STEP_S / (STEP_S + WIRE_S)
    for draw in range(draws):
        study = tmp_path / str(draw)
        for repeat in range(3):
            write_block(study, repeat, slower_sums=math.expm1(random.normal(0, 0.3)))
        write_study(study)
        _, two = explain_sweep(study).efficiencies
        interval = two.metrics["transfer efficiency"].interval
        assert interval is not None
        held += interval.low <= truth <= interval.high
    assert 0.85 <= held / draws <= 1
