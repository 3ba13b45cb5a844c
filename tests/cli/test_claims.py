"""What the page of claims says."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli.command_claims import claims_command
from harness.schema.sweep import Sweep


def test_the_command_runs_what_fits_and_says_what_each_study_costs(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run_together(sweeps: Sequence[Sweep], *_: object) -> int:
        ran.append(sweeps[0].workload.name)
        return 1

    monkeypatch.setattr("harness.sweep.execute.run_together", run_together)
    monkeypatch.setattr("harness.cli.command_claims.usable_cores", lambda: 2)
    where = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    told = CliRunner().invoke(claims_command, [*where, "--run", "--budget", "2"])
    assert told.exception is None and ran == ["adult-dnn"]
    assert "6 x 1, 2 ranks of adult-dnn; about 1.5 minutes; 0 of 1 decided" in told.output
    assert "about 7.5 minutes; needs the real rows (--data-dir FOLDER)" in told.output
    assert "mnist-dnn: left to the next command: more than what is left of 2 minutes" in told.output
    assert "adult-dnn: 1 launches failed, or have no valid times" in told.output
