"""What the page of the papers' experiments says, and what it leaves out."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from harness.base.command_context import Context
from harness.base.errors import RunError, UserError
from harness.claims.paper_experiments import POLICIES
from harness.cli.command_paper import paper_command
from harness.schema.record import read_run
from harness.schema.sweep import Sweep
from tests.labs.caches import own_cache
from tests.labs.factories import make_run, write_run
from tests.labs.page_text import Text
from tests.mpi.launch import warm_python

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_command_goes_on_after_a_failed_experiment(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []

    def run_sweep(sweep: Sweep, context: Context, *_: object, **__: object) -> Path:
        launched.append(sweep.workload)
        folder = context.results / sweep.name
        for point in sweep.points():
            if not (folder / point.folder).exists():
                write_run(folder, make_run(replace(point, workload=sweep.workload)))
        return folder

    def run_together(sweeps: Sequence[Sweep], context: Context, _: object) -> int:
        for sweep in sweeps:
            run_sweep(sweep, context)
        return int(sweeps[0].workload.dataset == "adult")

    monkeypatch.setattr("harness.sweep.execute.run_sweep", run_sweep)
    monkeypatch.setattr("harness.sweep.execute.run_together", run_together)
    where = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    few = ["--workloads", "adult-dnn,acoustic-dnn", "--nodes", "1", "--samples", "300"]
    result = CliRunner().invoke(paper_command, [*few, *where])
    assert isinstance(result.exception, RunError) and "adult-dnn" in str(result.exception)
    page = tmp_path / "reports" / "claims" / "index.html"
    assert result.output.splitlines()[-1] == str(page)
    assert (
        len(list((tmp_path / "reports").glob("*/index.html"))) == 3
    )  # two sweeps, and the page of experiments and claims
    assert "1 of 3 launches failed" in page.read_text()
    assert [workload.samples for workload in launched] == [300, 300]
    launched.clear()
    told = CliRunner().invoke(paper_command, ["--workloads", "acoustic-dnn", "--nodes", "1", "--full", *where])
    assert told.exception is None
    assert [workload.epochs for workload in launched] == [30]


def test_a_dry_run_lists_the_launches_and_writes_nothing(tmp_path: Path, cache: Path) -> None:
    words = [
        "--workloads",
        "mnist-dnn",
        "--nodes",
        "1,2",
        "--dry-run",
        "--json",
        "--results",
        str(tmp_path / "results"),
    ]
    told = CliRunner().invoke(paper_command, [*words, "--reports", str(tmp_path / "reports")], catch_exceptions=False)
    plan = json.loads(told.stdout)
    assert (plan["launches"], len(plan["sweeps"])) == (12, 3)  # 3 blocks of one rank, and of two under each policy
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_wrong_setting_is_told_before_anything_runs(tmp_path: Path, cache: Path) -> None:
    for setting, words in (
        ("--preset=paper-2016", "did you mean 'paper-2016-0"),
        ("--workloads=mnist", "did you mean 'mnist-"),
    ):
        with pytest.raises(UserError, match=words):
            CliRunner().invoke(paper_command, [setting, "--results", str(tmp_path / "results")], catch_exceptions=False)
    assert not (tmp_path / "results").exists()


@pytest.mark.e2e
@pytest.mark.mpi
def test_one_small_experiment_from_the_command_to_the_page(tmp_path: Path) -> None:
    """A block: one rank alone, and two under every policy; rank 0 reads and sends, and all replicas are equal."""
    size = ("--workloads", "adult-dnn", "--samples", "2000", "--epochs", "3", "--nodes", "1,2", "--repeats", "1")
    finished = subprocess.run(
        [warm_python(), "-m", "harness", "paper", *size],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HARNESS_CACHE_DIR": own_cache(tmp_path / "cache")},
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    runs = [read_run(file.parent) for file in sorted((tmp_path / "results").glob("*/*/run.json"))]
    assert {run.weights.tensors for run in runs} == {(98_400, 800, 80_000, 400, 800, 8)}
    assert sorted((len(run.ranks), run.point.workload.sync) for run in runs) == [
        (1, "weights:epoch"),
        *((2, policy) for policy in sorted(POLICIES)),
    ]
    assert all(run.weights.identical and run.epochs[-1].train_loss < run.epochs[0].train_loss for run in runs)
    assert all((run.ranks[0].distribute_s > 0) == (len(run.ranks) > 1) for run in runs)
    blocks = {
        folder.parent: [set(pd.read_parquet(file)["launch"]) for file in folder.iterdir()]
        for folder in (tmp_path / "results").glob("**/rounds")
    }
    assert len(blocks) == 1 + len(POLICIES)  # of the block, and its part for each policy's sweep
    for policy in POLICIES:
        own = next(run.point for run in runs if len(run.ranks) == 2 and run.point.workload.sync == policy)
        (folder,) = (tmp_path / "results").glob(f"*/{own.folder}")
        assert len(blocks[folder.parent]) == 1  # one rank alone stands beside it
        assert {name.split("-")[0] for name in blocks[folder.parent][0]} == {"n1x1x1", "n2x1x1"}
        assert len(blocks[folder.parent][0]) == 2 and own.folder in blocks[folder.parent][0]
    page = tmp_path / finished.stdout.splitlines()[-1]
    text = str(Text(page.read_text()))
    assert "2,000 synthetic rows of the data set's 32,561" in text.replace("\u00a0", " ")
    assert all(words in text for words in ("weights each epoch", "weights every 10 steps", "gradients each step"))
    assert page.parent.name == "claims"
