"""Whole jobs as a user starts them, from the command to the page; then the same with each file damaged."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli import main
from harness.schema.record import read_run
from harness.schema.sweep_folder import sweep_folders
from tests.labs.whole_job import ROOT, UNSAVED, harness
from tests.mpi.launch import PROGRAMS

pytestmark = [pytest.mark.e2e, pytest.mark.mpi]
smoke = pytest.mark.smoke

SCRIPTS = ROOT / "tests" / "scripts"
SCRIPT = SCRIPTS / "fit_arrays.py"
DAMAGES = ("cut", "empty", "folder", "gone", "noise")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, real_data: Path | None) -> Path:
    """Return a folder with the records and the page of a sweep on one and two ranks."""
    folder = tmp_path_factory.mktemp("a study")
    data = ("--data-kind", "synthetic") if real_data is None else ("--data-kind", "real", "--data-dir", real_data)
    cost = ("--samples", 3200, "--epochs", 2, "--repeats", 1, "--oversubscribe")
    words = ("--dataset", "mnist", "--nodes", "1..2", "--scheduler", "local", *data, *cost)
    finished = harness(folder, "sweep", *words, python=sys.executable)  # nothing of a test's between user and ranks
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (folder / "said.txt").write_text(finished.stdout)
    return folder


@smoke
def test_a_sweep_ends_in_equal_replicas_a_falling_loss_and_a_page(study: Path, real_data: Path | None) -> None:
    (sweep,) = sweep_folders(study / "results")
    runs = sorted((read_run(path.parent) for path in sweep.glob("*/run.json")), key=lambda run: len(run.ranks))
    assert [len(run.ranks) for run in runs] == [1, 2]
    for run in runs:
        assert run.weights.identical and run.seed == run.point.repeat == 0
        assert run.epochs[-1].train_loss < run.epochs[0].train_loss
        assert sum(rank.rows for rank in run.ranks) == 3200
        assert (run.data.kind == "real") == (real_data is not None)
    page = study / (study / "said.txt").read_text().splitlines()[-1]
    assert page.name == "index.html"
    assert "speedup" in page.read_text() or any(run.invalid for run in runs)  # a busy machine has no times that count


@smoke
def test_the_same_command_has_nothing_left_to_do(study: Path) -> None:
    """A busy machine makes times invalid, and then they are no reason to launch again by themselves."""
    told = harness(study, "status")
    assert told.returncode == 0 and ("2 done" in told.stdout or "invalid" in told.stdout), told.stdout
    assert "missing" not in told.stdout and "failed" not in told.stdout


@smoke
@pytest.mark.parametrize(
    "words",
    [
        pytest.param((SCRIPT,), id="fit"),
        pytest.param(("--unjudged", SCRIPTS / "tape_loop.py"), id="own loop"),
        pytest.param((PROGRAMS / "horovod_session.py", "found.json", 4), id="Horovod"),
        pytest.param(("--unjudged", SCRIPTS / "session_lenet.py"), id="TensorFlow 1"),
    ],
)
def test_a_users_script_trains_on_two_ranks(tmp_path: Path, words: tuple[object, ...]) -> None:
    """Modules are named by text on the way to a rank, which only a start of ranks follows: by each way of training."""
    finished = harness(tmp_path, "run", "--json", "-n", 2, *words, python=sys.executable)
    assert finished.returncode == 0, finished.stderr
    assert "sha256" in finished.stderr
    told = json.loads(finished.stdout)
    assert (told["ranks"], told["exit_code"]) == (2, 0)
    assert told["unjudged"] == ("--unjudged" in words)
    assert "on 2 ranks ended" in told["answer"]


def test_a_rank_that_is_killed_is_told_behind_what_mpirun_says(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    dies = "if start_mpi().rank: os.kill(os.getpid(), 9)"
    script.write_text(f"import os\nfrom harness.comm.world import start_mpi\n{dies}\n")
    finished = harness(tmp_path, "run", "-n", 2, script, python=sys.executable)
    assert finished.returncode == 137
    told = " ".join((finished.stdout + finished.stderr).split())
    assert "ended with exit code 137 (a rank was ended by SIGKILL, perhaps because memory ran out)" in told


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(0, marks=smoke),
        1,
        *(pytest.param(first, marks=pytest.mark.campaign) for first in range(2, len(DAMAGES))),
    ],
)
def test_a_damaged_study_is_told_in_sentences(
    study: Path, tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of the study in turn: a page of what is left, or one sentence and exit code 2; never a traceback.

    The files take turns with the kinds of damage; each of the tests begins with another.
    """
    monkeypatch.setattr("harness.report.svg.render", lambda *_: UNSAVED)
    (sweep,) = sweep_folders(study / "results")
    files = [path.relative_to(study) for path in sorted(sweep.rglob("*")) if path.suffix in (".json", ".parquet")]
    assert len(files) > 4
    for number, file in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(study / "results", folder / "results")
        spoil(folder / file, DAMAGES[(first + number) % len(DAMAGES)])
        results = ("--results", str(folder / "results"))
        for command in (("status", *results), ("report", *results, "--reports", str(folder / "reports"))):
            told = CliRunner().invoke(main, command)
            # The entry point makes one sentence of a file that the system refuses to read.
            refused = isinstance(told.exception, OSError) and bool(told.exception.filename)
            known = told.exception is None or refused or isinstance(told.exception, UserError | SystemExit)
            assert known, (file, command, repr(told.exception))


def spoil(path: Path, damage: str) -> None:
    """Damage one file."""
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "noise": os.urandom(len(whole))}[damage])
