"""Paper A repeated: what is planned, and what becomes of a wrong setting or a failed experiment."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import RunError, UserError
from harness.base.files import resource
from harness.claims.experiments import plan, rank_counts
from harness.schema.claim import CLAIMS_FILE, EXPERIMENTS, Published, read_published
from harness.schema.sweep import Sweep
from tests.factories import make_run, write_run


@pytest.fixture(scope="module")
def published() -> Published:
    return read_published(resource(CLAIMS_FILE))


def test_rank_counts_reach_all_cores_and_the_papers_counts(published: Published) -> None:
    claims = published.of("A")
    assert rank_counts(1, claims) == (1,)
    assert rank_counts(2, claims) == (1, 2)
    assert rank_counts(6, claims) == (1, 2, 4, 5, 6)
    assert rank_counts(64, claims) == (1, 2, 4, 5, 8, 16, 20, 32, 40, 64)


def test_the_seven_experiments_are_those_of_the_ledger(published: Published) -> None:
    assert set(EXPERIMENTS) == {c.experiment for c in published.of("A") if c.experiment} and len(EXPERIMENTS) == 7


def test_samples_never_exceed_the_real_rows(shared_data: Path, cache: Path) -> None:
    small = replace(EXPERIMENTS["higgs-dnn"], epochs=2)
    settings = {"nodes": (1, 2), "preset": "default", "repeats": 2, "epochs": None}
    real = plan(small, data_dir=shared_data, samples=None, **settings)  # type: ignore[arg-type]
    assert real.workload.samples is not None and 5000 < real.workload.samples < 10_000
    twin = plan(small, data_dir=None, samples=300, **settings)  # type: ignore[arg-type]
    assert (twin.workload.samples, twin.workload.epochs, twin.repeats) == (300, 2, 2)


def test_command_goes_on_after_a_failed_experiment(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.cli.paper import paper as command

    def run_sweep(sweep: Sweep, *, data_dir: Path | None, results: Path) -> Path:
        folder = results / sweep.name
        for point in sweep.points():
            write_run(folder, make_run(replace(point, workload=sweep.workload)))
        if sweep.workload.dataset == "adult":
            raise RunError("1 of 2 launches failed")
        return folder

    monkeypatch.setattr("harness.sweep.execute.run_sweep", run_sweep)
    two = {name: EXPERIMENTS[name] for name in ("adult-dnn", "acoustic-dnn")}
    monkeypatch.setattr("harness.schema.claim.EXPERIMENTS", two)
    where = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    result = CliRunner().invoke(command, ["--repeats", "1", "--nodes", "1", "--samples", "300", *where])
    assert isinstance(result.exception, RunError) and "adult-dnn" in str(result.exception)
    assert (tmp_path / "reports" / "claims" / "index.html").is_file()
    assert len(list((tmp_path / "reports").glob("*/index.html"))) == 3
    assert "adult-dnn: 1 of 2 launches failed" in result.output


def test_a_wrong_setting_is_told_before_anything_runs(tmp_path: Path, cache: Path) -> None:
    from harness.cli.paper import paper as command

    arguments = ["--preset", "paper-2016", "--results", str(tmp_path / "results")]
    with pytest.raises(UserError, match="did you mean 'paper-2016-0"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert not (tmp_path / "results").exists()
