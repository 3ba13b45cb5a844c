"""A check without a sweep measures the study of its baseline again: it starts ranks, because that is what it is."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.schema.sweep_folder import RUN_FILE

STUDY = ("--dataset=adult", "--data-kind=synthetic", "--samples=2000", "--epochs=20", "--nodes=1,2", "--repeats=3")


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.alone  # beside other tests, other work meets nearly every round, and nothing is judged
@pytest.mark.usefixtures("warm", "cache")
def test_a_study_is_measured_again_as_it_was_recorded(tmp_path: Path) -> None:
    results = f"--results={tmp_path / 'results'}"
    reports = f"--reports={tmp_path / 'reports'}"
    baselines = f"--baselines={tmp_path / 'baselines'}"
    swept = CliRunner().invoke(main, ["sweep", *STUDY, results, reports], standalone_mode=False)
    if swept.return_value == 3:
        pytest.skip("no valid times: the machine was busy")
    saved = CliRunner().invoke(main, ["baseline", "save", "main", results, baselines], standalone_mode=False)
    assert saved.exception is None, saved.output
    words = ["check", results, reports, baselines, "--json"]
    checked = CliRunner().invoke(main, words, standalone_mode=False)
    assert checked.exception is None, checked.output
    document = json.loads(checked.stdout)
    assert document["against"] == "main" and checked.return_value in (0, 1, 3)
    assert {row["quantity"] for row in document["rows"]} >= {"step time", "efficiency", "transfer efficiency"}
    assert all(1 <= blocks <= 3 for row in document["rows"] for blocks in row["blocks"])  # others may be contended
    assert len(list((tmp_path / "results/checks").glob(f"*/*/*/{RUN_FILE}"))) == 6
    assert len(list((tmp_path / "results").glob(f"*/*/{RUN_FILE}"))) == 6  # the sweep has no more
