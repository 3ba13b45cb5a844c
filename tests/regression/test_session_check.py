"""Checks of new sessions beside a baseline: what is named, what told how far sessions differ, what is missing."""

import re
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from harness.regression.measurement import Measurement, compare_stacks
from harness.regression.session_check import Verdict, check_sessions
from harness.regression.session_model import ScatterSource
from harness.report.answer import plain
from harness.report.session_answer import session_answer
from tests.labs.factories import START
from tests.labs.sentences import says
from tests.labs.simulated_sessions import FACTORS, SimulatedMachine, simulate_sessions

QUIET = SimulatedMachine(between=0.004, within=0.004, time_between=0.005)


def sides(sessions: int = 5, **changes: object):
    random = np.random.default_rng(5)
    baseline = replace(simulate_sessions(random, QUIET, sessions), label="main")
    return baseline, replace(simulate_sessions(random, QUIET, 1, first_day=50, **changes), label="now")  # type: ignore[arg-type]


def test_the_same_stack_passes() -> None:
    check = check_sessions(*sides())
    assert Verdict.REGRESSION not in {row.verdict for row in check.rows}
    assert {row.verdict for row in check.rows if row.quantity == "transfer efficiency"} == {Verdict.PASS}
    assert {row.scatter.source for row in check.rows} == {ScatterSource.COMPARED}


@pytest.mark.parametrize("factor", FACTORS)
def test_a_planted_loss_of_a_factor_is_named(factor: str) -> None:
    check = check_sessions(*sides(losses={factor: 0.15}))
    named = {row.quantity for row in check.of(Verdict.REGRESSION)}
    assert factor in named and not named & set(FACTORS) - {factor}
    answer = session_answer(check, "harness check")
    says(answer.sentence, "REGRESSION", factor, "2 ranks", "main")
    assert len(re.findall(r"\d[\d.]*", answer.sentence)) <= 2  # the loss and the ranks
    says(answer.details[0], factor, "95 % CI")
    assert answer.code == 1
    (worst,) = (row for row in check.rows if row.quantity == factor)
    assert worst.interval is not None and worst.interval.low < 0.15 < worst.interval.high


def test_slower_steps_on_all_layouts_are_no_loss_of_efficiency() -> None:
    check = check_sessions(*sides(slower=0.2))
    assert {(row.quantity, row.layout.ranks) for row in check.of(Verdict.REGRESSION)} == {
        ("step time", 1),
        ("step time", 2),
    }
    says(" ".join(session_answer(check, "harness check").details), "every layout", "efficiency did not")


def test_a_faster_stack_is_an_improvement() -> None:
    check = check_sessions(*sides(slower=-0.2))
    assert {row.quantity for row in check.of(Verdict.IMPROVEMENT)} == {"step time"}


def test_one_session_says_that_a_default_is_taken_and_what_would_decide() -> None:
    check = check_sessions(*sides(1))
    assert check.verdict == Verdict.CANNOT_TELL
    assert {row.scatter.source for row in check.rows} == {ScatterSource.DEFAULT}
    answer = session_answer(check, "harness check")
    assert answer.code == 3 and any("default" in note for note in answer.notes)
    assert "CANNOT TELL" in answer.sentence
    says(" ".join(answer.details), "3 sessions", "harness compare")
    assert all(row.needed for row in check.of(Verdict.CANNOT_TELL))


def test_a_check_that_cannot_tell_names_the_limit_at_which_it_passes() -> None:
    baseline, now = sides(1)
    check = check_sessions(baseline, now)
    highest = max(row.interval.high for row in check.rows if row.interval is not None)
    assert check.largest_possible_loss == highest
    (words,) = (line for line in session_answer(check, "harness check").details if "--threshold" in line)
    (percent,) = re.findall(r"--threshold (\d+\.\d)", words)
    assert float(percent) - 0.1 <= 100 * highest < float(percent)
    assert check_sessions(baseline, now, threshold=float(percent) / 100).verdict == Verdict.PASS


def test_sessions_of_one_day_have_a_default_of_their_own() -> None:
    baseline, later = sides(1)
    shift = later.newest - baseline.newest - timedelta(hours=3)
    moved = tuple(
        replace(launch, started=launch.started - shift, ended=launch.ended - shift) for launch in later.launches
    )
    check = check_sessions(baseline, replace(later, launches=moved))
    assert {row.scatter.source for row in check.rows} == {ScatterSource.SAME_DAY}
    assert {row.sessions for row in check.rows} == {(1, 1)}
    other_days = {(row.quantity, row.layout): row for row in check_sessions(baseline, later).rows}
    for row in check.rows:
        other = other_days[row.quantity, row.layout]
        assert row.slowdown == other.slowdown
        assert row.interval is not None and other.interval is not None
        assert other.interval.low < row.interval.low < row.interval.high < other.interval.high
    assert any("of one day" in note for note in session_answer(check, "harness check").notes)


def test_other_sweeps_of_the_machine_tell_how_far_sessions_differ() -> None:
    baseline, now = sides(1)
    others = [simulate_sessions(np.random.default_rng(6), QUIET, 6, first_day=10)]
    check = check_sessions(baseline, now, machine_sweeps=others)
    assert {row.scatter.source for row in check.rows} == {ScatterSource.MACHINE}
    assert {row.scatter.sessions for row in check.rows} == {6}


def test_a_sure_gain_is_said_beside_rows_that_are_open() -> None:
    slow, fast = sides(1, losses={"transfer efficiency": -0.2})
    check = check_sessions(slow, fast)
    assert check.verdict == Verdict.CANNOT_TELL and check.of(Verdict.IMPROVEMENT)
    says(" ".join(session_answer(check, "harness check").details), "gain is sure", "transfer efficiency")


def test_a_layout_that_was_not_measured_now_cannot_pass() -> None:
    baseline, now = sides()
    only_one = replace(now, launches=tuple(launch for launch in now.launches if launch.layout.ranks == 1))
    check = check_sessions(baseline, only_one)
    assert check.verdict == Verdict.CANNOT_TELL and [layout.ranks for layout in check.unmeasured] == [2]


def test_sessions_of_one_day_are_said_to_tell_too_little() -> None:
    baseline, now = sides()
    hours = [
        replace(launch, started=launch.started - days, ended=launch.ended - days)
        for launch in baseline.launches
        for days in [(launch.started - START) * (22 / 24)]
    ]
    of_one_day = replace(baseline, launches=tuple(hours))
    check = check_sessions(of_one_day, now)
    assert check.is_told_by_one_day and not check_sessions(baseline, now).is_told_by_one_day
    assert {row.sessions for row in check.rows} == {(5, 1)}
    says(" ".join(session_answer(check, "harness check").notes), "one day")


def test_launches_without_times_of_calls_have_no_factors() -> None:
    baseline, now = sides()
    bare = replace(now, launches=tuple(replace(launch, useful=None) for launch in now.launches))
    assert {row.quantity for row in check_sessions(baseline, bare).rows} == {"step time", "efficiency"}


def test_what_changed_of_the_stack_comes_first() -> None:
    baseline, now = sides()
    changed = replace(
        now,
        software=replace(now.software, mpi_library="MPICH 5.0"),
        conditions={**now.conditions, "TF_ENABLE_ONEDNN_OPTS": "0"},
    )
    lines = compare_stacks(baseline, changed)
    first = {line.name for line in lines[:2]}
    assert first == {"mpi library", "TF_ENABLE_ONEDNN_OPTS"}
    assert not any(line.changed for line in lines[2:]) and len(lines) > 5
    notes = plain(" ".join(session_answer(check_sessions(baseline, changed), "harness check").notes))
    assert "TF_ENABLE_ONEDNN_OPTS changed: not set to 0" in notes


def beside_work(measurement: Measurement, cores: float, *, blocks: range = range(3)) -> Measurement:
    """Return the launches of so many `blocks` beside other work on so many `cores`."""
    launches = tuple(
        replace(launch, other_cores=cores, met=True) if launch.repeat in blocks else launch
        for launch in measurement.launches
    )
    return replace(measurement, launches=launches)


def test_a_session_beside_a_constant_load_is_no_regression() -> None:
    baseline, slower = sides(slower=0.3, losses={"load balance": 0.2})
    assert check_sessions(baseline, slower).verdict == Verdict.REGRESSION
    check = check_sessions(baseline, beside_work(slower, 1.0))
    assert check.verdict == Verdict.CANNOT_TELL and not check.of(Verdict.REGRESSION)
    assert check.other_work == 1.0 and not check.blocks_would_decide
    answer = session_answer(check, "harness check")
    assert answer.code == 3
    says(answer.sentence, "CANNOT TELL", "other work", "1.0 cores")
    says(answer.details[0], "largest loss", "which that work may have caused")


def test_a_gain_beside_a_constant_load_is_not_told_either() -> None:
    baseline, faster = sides(slower=-0.3)
    assert check_sessions(baseline, beside_work(faster, 1.0)).verdict == Verdict.CANNOT_TELL


@pytest.mark.parametrize(
    ("cores", "blocks", "cores_of_baseline"),
    [
        (0.2, range(3), 0.0),  # housekeeping of a quiet machine
        (1.0, range(2), 0.0),  # a block was alone
        (1.0, range(3), 1.0),  # work that is always there is part of the machine
    ],
)
def test_other_work_that_does_not_explain_a_loss_leaves_it_a_regression(
    cores: float, blocks: range, cores_of_baseline: float
) -> None:
    baseline, slower = sides(slower=0.3)
    check = check_sessions(
        beside_work(baseline, cores_of_baseline, blocks=range(15)), beside_work(slower, cores, blocks=blocks)
    )
    assert check.verdict == Verdict.REGRESSION and check.other_work is None


def test_factors_of_whole_epochs_are_said_to_be() -> None:
    baseline, now = sides()
    told = tuple(
        replace(launch, useful=replace(launch.useful, excludes_contended=True))
        for launch in now.launches
        if launch.useful
    )
    in_turns = (replace(baseline, in_turns=True), replace(now, in_turns=True, launches=told))
    check = check_sessions(*in_turns)
    assert [measurement.label for measurement in check.whole_epochs] == ["main"]
    says(" ".join(session_answer(check, "harness check").notes), "'main'", "whole epochs")
