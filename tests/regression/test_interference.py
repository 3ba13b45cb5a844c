"""Interference in some rounds of one session: it changes no verdict on a factor of the efficiency."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.regression.measurement import Measurement, measured_in
from harness.regression.session_check import SessionCheck, Verdict, check_sessions
from harness.regression.session_samples import FACTORS
from harness.schema.sweep_folder import STEPS_FILE
from tests.labs.factories import write_study
from tests.labs.interference import WIRE_S, meet_all_recorded_rounds, write_block


def session(study: Path, *, met: range = range(0), slower_sums: float = 0.0, day: int = 9) -> Measurement:
    """Return a session of three blocks; other work meets so many rounds of the first two."""
    for repeat in range(3):
        write_block(study, repeat, day=day, met=met if repeat < 2 else range(0), slower_sums=slower_sums)
    write_study(study)
    return measured_in(study, "now", None)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    study = tmp_path_factory.mktemp("baseline")
    for day in range(3):
        for block in range(3):
            write_block(study, 3 * day + block, day=day)
    write_study(study)
    return measured_in(study, "main", None)


def factor_verdicts(check: SessionCheck) -> dict[str, Verdict]:
    return {row.quantity: row.verdict for row in check.rows if row.quantity in FACTORS}


def without_turns(study: Path) -> None:
    """Take the column of turns out of the steps of all launches in `study`."""
    for file in study.glob(f"*/{STEPS_FILE}"):
        table = pq.read_table(file)
        pq.write_table(table.drop_columns([name for name in table.column_names if name == "turn"]), file)


def test_interference_in_some_rounds_changes_no_factors_verdict(tmp_path: Path, baseline: Measurement) -> None:
    met = session(tmp_path / "met", met=range(5, 25))
    verdicts = factor_verdicts(check_sessions(baseline, met))
    assert verdicts == factor_verdicts(check_sessions(baseline, session(tmp_path / "quiet")))
    assert set(verdicts.values()) == {Verdict.PASS} and len(verdicts) == len(FACTORS)


def test_a_loss_is_found_beside_interference(tmp_path: Path, baseline: Measurement) -> None:
    slower = session(tmp_path / "met", met=range(5, 25), slower_sums=1.0)
    regressions = {row.quantity for row in check_sessions(baseline, slower).of(Verdict.REGRESSION)}
    assert "transfer efficiency" in regressions and "load balance" not in regressions


def test_factors_are_those_of_the_rounds_that_are_left(tmp_path: Path) -> None:
    (useful,) = {launch.useful for launch in session(tmp_path, met=range(5, 25)).launches if launch.repeat == 0} - {
        launch.useful for launch in measured_in(tmp_path, "now", None).launches if launch.layout.ranks == 1
    }
    assert useful is not None and useful.excludes_contended
    assert useful.mean / useful.longest == pytest.approx(1, abs=0.005)
    assert useful.whole - useful.ideal == pytest.approx(400 * WIRE_S, rel=0.02)


def test_records_without_turns_have_factors_of_whole_epochs(tmp_path: Path) -> None:
    session(tmp_path, met=range(5, 25))
    without_turns(tmp_path)
    launches = measured_in(tmp_path, "now", None).launches
    told = {
        (launch.layout.ranks, launch.useful is not None and launch.useful.excludes_contended) for launch in launches
    }
    assert told == {(1, True), (2, False)}
    met_launch = next(launch for launch in launches if launch.layout.ranks == 2)
    assert met_launch.useful is not None and met_launch.useful.mean / met_launch.useful.longest < 0.95


def test_a_launch_whose_recorded_rounds_were_all_met_has_no_factors(tmp_path: Path) -> None:
    """The rounds in which it trained on after its last recorded epoch have no steps."""
    write_block(tmp_path, 0)
    meet_all_recorded_rounds(tmp_path, 0)
    write_study(tmp_path)
    known = {launch.layout.ranks: launch.useful is not None for launch in measured_in(tmp_path, "now", None).launches}
    assert known == {1: True, 2: False}
