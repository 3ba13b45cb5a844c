"""Launches in turns are launches: bit for bit the weights, losses and accuracies that they have alone."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.report.answer import Answer
from harness.schema.record import RunRecord, encode, read_run
from harness.schema.sweep_folder import STEPS_FILE
from tests.labs.caches import own_cache
from tests.mpi.launch import PROGRAMS, run_ranks, warm_python

# Ranks must start: what is compared is what they train.
pytestmark = pytest.mark.mpi

LAYOUTS = {"n1x1x1": 1, "n2x1x1": 2}
SIZE = ("--dataset=adult", "--data-kind=synthetic", "--samples=6000", "--epochs=3", "--nodes=1,2")
TRAININGS = {"sgd": (), "weights": ("--sync=weights:3",), "adam": ("--optimizer=adam", "--global-batch=64")}


def sweep(folder: Path, *options: str, reduction: str = "native") -> dict[str, RunRecord]:
    """Return the records of a sweep's launches by their layout; its page, which takes as long, is left out."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "executable", warm_python())
        patch.setenv("HARNESS_CACHE_DIR", own_cache(folder.parent / "cache"))
        patch.setenv("HARNESS_LOCK_DIR", str(folder))
        patch.setenv("HARNESS_REDUCTION", reduction)
        patch.setattr("harness.report.sweep_answer.report_sweep", lambda *_, **__: Answer(sentence="no page"))
        made = CliRunner().invoke(main, ["sweep", *options, "--repeats=1"])
    assert made.exit_code == 0, made.output
    return {path.parent.name.split("-")[0]: read_run(path.parent) for path in folder.glob("results/*/n*/run.json")}


def outcome(record: RunRecord) -> tuple[object, ...]:
    """Return what training came to."""
    epochs = [(epoch.train_loss, epoch.test_loss, epoch.test_accuracy) for epoch in record.epochs]
    return record.weights.sha256, epochs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the sweeps of `in_turns` lie by their names."""
    return tmp_path_factory.mktemp("turns")


@pytest.fixture(scope="module")
def in_turns(folder: Path) -> dict[str, dict[str, RunRecord]]:
    """Return the records of `TRAININGS` on one and two ranks in turns, by name and layout."""
    return {name: sweep(folder / name, *SIZE, *more) for name, more in TRAININGS.items()}


@pytest.fixture(scope="module")
def alone(folder: Path, in_turns: dict[str, dict[str, RunRecord]]) -> dict[str, dict[str, RunRecord]]:
    """Return the records of the same points without turns: a launch on one rank and one on two train all of them."""
    records: dict[str, dict[str, RunRecord]] = {name: {} for name in in_turns}
    for layout, ranks in LAYOUTS.items():
        words = []
        for name, launches in in_turns.items():
            point = folder / f"{name}-{layout}.json"
            point.write_bytes(encode(launches[layout].point))
            words.append(["--point", str(point), "--record", str(folder / "alone" / f"{name}-{layout}")])
        cache = str(folder / "cache")
        finished = run_ranks(ranks, PROGRAMS / "trainings.py", json.dumps(words), "[]", HARNESS_CACHE_DIR=cache)
        assert finished.returncode == 0, finished.stderr[-3000:]
        for name in in_turns:
            records[name][layout] = read_run(folder / "alone" / f"{name}-{layout}")
    return records


@pytest.mark.parametrize("name", TRAININGS)
def test_weights_and_losses_in_turns_are_those_alone(
    folder: Path, in_turns: dict[str, dict[str, RunRecord]], alone: dict[str, dict[str, RunRecord]], name: str
) -> None:
    assert set(in_turns[name]) == set(LAYOUTS)
    for layout, record in in_turns[name].items():
        assert outcome(record) == outcome(alone[name][layout])
        assert record.block and not alone[name][layout].block
    (rounds,) = (folder / name).glob("results/*/rounds/*.parquet")
    turns = pd.read_parquet(rounds)
    assert {launch.split("-")[0] for launch in turns["launch"]} == set(LAYOUTS)
    for path in (folder / name).glob("results/*/n*"):
        steps = pd.read_parquet(path / STEPS_FILE)
        marks = steps[steps["rank"] == 0]["turn"].to_numpy()
        timed = turns[turns["launch"] == path.name]["steps"]
        assert 0 < marks[marks > 2].size < timed.sum()  # it goes on for rounds alone, and of that nothing is recorded
        assert np.unique(marks).size > 2
    assert turns["round"].nunique() > 10


def test_without_the_native_operation_turns_are_taken_through_python(
    folder: Path, alone: dict[str, dict[str, RunRecord]]
) -> None:
    """Through Python two ranks train as through the operation, bit for bit."""
    in_turns = sweep(folder / "bridge", *SIZE, reduction="bridge")
    for layout, record in in_turns.items():
        assert outcome(record) == outcome(alone["sgd"][layout])
    assert in_turns["n2x1x1"].provenance.reduction == "numpy_function bridge"
    (rounds,) = (folder / "bridge").glob("results/*/rounds/*.parquet")
    assert pd.read_parquet(rounds)["launch"].nunique() == 2


SCRIPT = Path(__file__).parents[1] / "scripts" / "fit_arrays.py"


def test_a_script_in_turns_trains_what_it_trains_alone(tmp_path: Path) -> None:
    own = (f"--script={SCRIPT}", "--script-batch=global", "--nodes=1,2")
    in_turns = sweep(tmp_path / "turns", *own)
    # Not asked for times: no launch is made again on a busy machine.
    alone = sweep(tmp_path / "alone", *own, "--mode", "jobs", "--oversubscribe")
    for layout, record in in_turns.items():
        assert outcome(record) == outcome(alone[layout])
    (rounds,) = (tmp_path / "turns").glob("results/*/rounds/*.parquet")
    assert pd.read_parquet(rounds)["launch"].nunique() == 2


LOOP = PROGRAMS / "horovod_session.py"


def test_a_loop_that_sums_its_gradients_by_itself_takes_turns_and_its_clocks_leave_out_the_others(
    tmp_path: Path,
) -> None:
    rate = r"total samples/sec: ([0-9.]+)"
    arguments = f"--script-arguments={tmp_path / 'found.json'} 300"
    own = (f"--script={LOOP}", arguments, "--script-batch=4", f"--own-rate={rate}", "--scaling=weak", "--nodes=1,2")
    in_turns = sweep(tmp_path / "turns", *own)
    (rounds,) = (tmp_path / "turns").glob("results/*/rounds/*.parquet")
    turns = pd.read_parquet(rounds)
    assert turns["launch"].nunique() == 2
    assert turns["round"].nunique() > 2
    for record in in_turns.values():
        rows = 8 * 298  # of the steps that the script times; those of a rank's record are 4 or 8 a step, by its batch
        seconds = sum(epoch.seconds[0] for epoch in record.epochs)
        steps = sum(epoch.steps for epoch in record.epochs)
        assert record.block and record.weights.identical
        assert record.own_rate == pytest.approx(rows / 298 * steps / seconds, rel=0.15)
