"""Launches in turns are launches: bit for bit the weights, losses and accuracies that they have alone."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.report.answer import Answer
from harness.schema.record import RunRecord, read_run
from harness.schema.sweep_folder import STEPS_FILE
from tests.labs.caches import own_cache

# Ranks must start: what is compared is what they train.
pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("warm")]


def sweep(folder: Path, *options: str) -> dict[str, RunRecord]:
    """Return the records of a sweep's launches by their layout; its page, which takes as long, is left out."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HARNESS_CACHE_DIR", own_cache(folder.parent / "cache"))
        patch.setattr("harness.report.sweep_answer.report_sweep", lambda *_, **__: Answer(sentence="no page"))
        made = CliRunner().invoke(main, ["sweep", *options, "--repeats=1"])
    assert made.exit_code == 0, made.output
    return {path.parent.name.split("-")[0]: read_run(path.parent) for path in folder.glob("results/*/n*/run.json")}


ALONE = ("--no-turns", "--oversubscribe")  # which is not asked for times: no launch is made again on a busy machine


def outcome(record: RunRecord) -> tuple[object, ...]:
    """Return what training came to."""
    epochs = [(epoch.train_loss, epoch.test_loss, epoch.test_accuracy) for epoch in record.epochs]
    return record.weights.sha256, epochs


@pytest.mark.parametrize(
    "more", [(), ("--sync=weights:3",), ("--optimizer=adam", "--global-batch=64")], ids=["sgd", "weights", "adam"]
)
def test_weights_and_losses_in_turns_are_those_alone(tmp_path: Path, more: tuple[str, ...]) -> None:
    own = ("--dataset=adult", "--data-kind=synthetic", "--samples=6000", "--epochs=3", "--nodes=1,2", *more)
    in_turns, alone = sweep(tmp_path / "turns", *own), sweep(tmp_path / "alone", *own, *ALONE)
    assert set(in_turns) == set(alone) == {"n1x1x1", "n2x1x1"}
    for layout, record in in_turns.items():
        assert outcome(record) == outcome(alone[layout])
        assert record.block and not alone[layout].block
    (rounds,) = (tmp_path / "turns").glob("results/*/rounds/*.parquet")
    turns = pd.read_parquet(rounds)
    assert {name.split("-")[0] for name in turns["launch"]} == set(in_turns)
    for path in (tmp_path / "turns").glob("results/*/n*"):
        steps = pd.read_parquet(path / STEPS_FILE)
        marks = steps[steps["rank"] == 0]["turn"].to_numpy()
        timed = turns[turns["launch"] == path.name]["steps"]
        assert 0 < marks[marks > 2].size < timed.sum()  # it goes on for rounds alone, and of that nothing is recorded
        assert np.unique(marks).size > 2
    assert turns["round"].nunique() > 10


SCRIPT = Path(__file__).parents[1] / "scripts" / "fit_arrays.py"


def test_a_script_in_turns_trains_what_it_trains_alone(tmp_path: Path) -> None:
    own = (f"--script={SCRIPT}", "--script-batch=global", "--nodes=1,2")
    in_turns, alone = sweep(tmp_path / "turns", *own), sweep(tmp_path / "alone", *own, *ALONE)
    for layout, record in in_turns.items():
        assert outcome(record) == outcome(alone[layout])
    (rounds,) = (tmp_path / "turns").glob("results/*/rounds/*.parquet")
    assert pd.read_parquet(rounds)["launch"].nunique() == 2


def test_without_the_native_operation_turns_are_taken_through_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_REDUCTION", "bridge")
    own = ("--dataset=adult", "--data-kind=synthetic", "--samples=3000", "--epochs=2", "--nodes=1,2")
    in_turns, alone = sweep(tmp_path / "turns", *own), sweep(tmp_path / "alone", *own, *ALONE)
    for layout, record in in_turns.items():
        assert outcome(record) == outcome(alone[layout])
    (rounds,) = (tmp_path / "turns").glob("results/*/rounds/*.parquet")
    assert pd.read_parquet(rounds)["launch"].nunique() == 2


LOOP = Path(__file__).parents[1] / "mpi" / "horovod_session.py"


def test_a_loop_that_sums_its_gradients_by_itself_takes_turns_and_its_clocks_leave_out_the_others(
    tmp_path: Path,
) -> None:
    rate = r"total rows/sec: ([0-9.]+)"
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
