"""Paper A's experiments as they are planned: its algorithm, and on the same rows what came after."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from harness.base.command_context import Context
from harness.base.files import resource
from harness.claims.paper_experiments import POLICIES, PRESET, ExperimentSize, plan_experiments, rank_counts
from harness.report.claims_answer import FOLDER
from harness.report.experiment_results import PaperStudy, read_experiments
from harness.schema.claim import CLAIMS_FILE, EXPERIMENTS, Published, read_published
from harness.schema.layout import Layout
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.execute import run_together
from harness.sweep.planned_launches import SweepPlan
from harness.sweep.site import JobRequest
from harness.sweep.submission_settings import Submission
from tests.labs.factories import make_point, make_run, write_run

TWO = (Layout(nodes=1), Layout(nodes=2))


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


def planned(name: str = "adult-dnn", *, data_dir: Path | None = None, **size: object) -> tuple[Sweep, ...]:
    size = ExperimentSize(**size)  # type: ignore[arg-type]
    return plan_experiments(EXPERIMENTS[name], layouts=TWO, preset=PRESET, size=size, data_dir=data_dir)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_algorithm_is_the_default(name: str, cache: Path) -> None:
    """Rank 0 sends (3.3.1), weights are averaged once per epoch (2.2, 3.3), plain Adagrad as in the group's script."""
    first, *others = planned(name)
    workload = first.workload
    assert (workload.name, workload.sync, workload.distribution) == (name, "weights:epoch", "scatter")
    assert (workload.optimizer, workload.schedule, workload.batch_per_rank) == ("adagrad", "constant", 10)
    assert first.layouts == TWO
    assert tuple(sweep.workload.sync for sweep in (first, *others)) == POLICIES
    for other in others:  # nothing else differs, and one rank has nothing to synchronise
        assert replace(other.workload, sync=workload.sync) == workload
        assert other.layouts == TWO[1:]


def test_one_rank_alone_needs_one_sweep(cache: Path) -> None:
    alone = plan_experiments(
        EXPERIMENTS["adult-dnn"], layouts=TWO[:1], preset=PRESET, size=ExperimentSize(), data_dir=None
    )
    assert [sweep.workload.sync for sweep in alone] == ["weights:epoch"]


def test_full_is_every_row_every_epoch_and_enough_launches_for_intervals(cache: Path) -> None:
    cut, full = planned("mnist-cnn")[0], planned("mnist-cnn", full=True)[0]
    assert (full.workload.samples, full.workload.epochs, full.repeats) == (60_000, 30, 6)
    assert cut.workload.samples < 60_000 and cut.workload.epochs < 30 and cut.repeats == 3
    asked = planned("mnist-cnn", full=True, epochs=2, samples=300, repeats=1)[0]
    assert (asked.workload.samples, asked.workload.epochs, asked.repeats) == (300, 2, 1)


def test_samples_never_exceed_the_real_rows(shared_data: Path, cache: Path) -> None:
    real = planned("higgs-dnn", data_dir=shared_data)[0]
    assert real.workload.samples is not None and 5000 < real.workload.samples < 10_000


def test_policies_share_blocks_and_each_has_its_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks train for half as long a step as one does, whose launches are of the first policy's sweep alone."""

    class Trained:
        dropped, not_made, busy = 0, 0, ""

        def __init__(self, plan: SweepPlan, *_: object, **__: object) -> None:
            folder = plan.wanted.folder
            SweepFolder(folder).rounds.mkdir(exist_ok=True)
            for job in plan.jobs:
                name = f"block-{job.points[0].repeat}"
                turns = []
                for point in job.points:
                    bound = ";".join(map(str, range(point.layout.ranks)))
                    turns.append((0, point.folder, 20, 1 / point.layout.ranks, 1.0, bound))
                frame = pd.DataFrame(turns, columns=["round", "launch", "steps", "seconds", "cores", "bound"])
                frame.to_parquet(SweepFolder(folder).block_turns(name))
                for point in job.points:
                    write_run(folder, replace(make_run(point), block=name))

        def run(self) -> int:
            return 0

    monkeypatch.setattr("harness.sweep.execute.Launches", Trained)
    monkeypatch.setattr("harness.sweep.execute.prepare_data", lambda *_: None)
    workload = make_point(samples=640).workload
    sweeps = [Sweep(workload=replace(workload, sync=policy), layouts=TWO[k:]) for k, policy in enumerate(POLICIES[:2])]
    in_turns = Submission(request=JobRequest(mode="turns"))
    for _ in range(2):  # the second time nothing is missing
        assert run_together(sweeps, Context(results=tmp_path), in_turns) == 0
    assert len(list(tmp_path.glob("together/*/rounds/*"))) == 3 and not list(tmp_path.glob("together/*/n*"))
    study = PaperStudy(experiment="mnist-dnn", folders=tuple(tmp_path / sweep.name for sweep in sweeps))
    (found,) = read_experiments([study], Published(papers=()), tmp_path / "reports" / FOLDER)
    points = [side.point for line in found.lines for side in line.sided.sides]
    assert [(one.ranks, one.blocks) for one in points if one] == [(1, 0), (2, 3), (2, 3)]
    assert all(one.speedup_interval for one in points[1:] if one)
