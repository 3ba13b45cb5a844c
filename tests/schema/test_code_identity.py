"""What would run: the identity that decides whether a finished launch still answers the question."""

import shutil
import sys
from pathlib import Path

import pytest

from harness.base.processes import run_program
from harness.datasets import locate
from harness.schema.code_identity import check_source, code_identity, source_identity
from harness.schema.layout import Layout
from harness.schema.presets import script_workload
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload
from harness.sweep.status import read_status
from tests.labs.factories import make_workload, write_report
from tests.labs.sentences import refuses, says
from tests.labs.sweep_lab import Lab

MODEL = "own.nets:small"


def located(workload: Workload) -> Sweep:
    """Return the sweep of two launches of `workload` on the data that is here."""
    return Sweep(workload=workload, layouts=(Layout(nodes=1),), repeats=2, data_id=locate(workload, None).data_id)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with a package `own` whose module `nets` imports `layers`, and not `other`."""
    folder = tmp_path / "work"
    (folder / "own").mkdir(parents=True)
    monkeypatch.chdir(folder)
    (folder / "own/__init__.py").write_text("")
    (folder / "own/nets.py").write_text("import keras\nfrom .layers import block\nfrom helpers import rate\n")
    (folder / "own/layers.py").write_text("def block(): ...\n")
    (folder / "own/other.py").write_text("")
    (folder / "helpers.py").write_text("rate = 1\n")
    return folder


def script(folder: Path) -> Workload:
    path = folder / "train.py"
    path.write_text("import own.nets\nprint(1)\n")
    return script_workload(path, [], sync="gradients", batch="global")


@pytest.mark.parametrize("edited", ["own/__init__.py", "own/nets.py", "own/layers.py", "helpers.py"])
def test_an_edit_of_the_model_or_of_what_it_imports_is_other_code(package: Path, edited: str) -> None:
    for workload in (make_workload(model=MODEL), script(package)):
        before = source_identity(workload)
        text = (package / edited).read_text()
        (package / edited).write_text(text + "# edited\n")
        assert source_identity(workload) != before
        (package / edited).write_text(text)
        assert source_identity(workload) == before


def test_what_is_not_imported_does_not_count_and_nothing_is_imported(package: Path) -> None:
    workload = make_workload(model=MODEL)
    before = source_identity(workload)
    (package / "own/other.py").write_text("# edited\n")
    assert source_identity(workload) == before
    assert "own" not in sys.modules


def test_an_edited_script_is_other_code_and_the_same_sweep(package: Path) -> None:
    workload = script(package)
    name = located(workload).name
    before = source_identity(workload)
    (package / "train.py").write_text("print(2)\n")
    assert source_identity(workload) != before
    assert located(workload).name == name


def test_an_upgrade_is_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = make_workload()
    before = code_identity(workload, "Open MPI 5.0.8")
    newer = "Open MPI 5.0.9"
    assert code_identity(workload, newer) != before
    monkeypatch.setattr("harness.schema.code_identity.package_version", lambda name: "2.22.0")
    after = code_identity(workload, "Open MPI 5.0.8")
    assert after != before
    assert after.partition("-")[0] == before.partition("-")[0]


@pytest.mark.parametrize(
    ("edited", "counts"),
    [
        ("train/step.py", True),
        ("comm/new.cc", True),
        ("transparent/start.py", True),
        ("sweep/referee.py", True),  # it says which steps are timed
        ("sweep/launch_command.py", True),  # it binds ranks to cores
        ("sweep/schedulers/slurm.py", False),
        ("sweep/schedulers/slurm.py", False),
        ("cli/command_sweep.py", False),
        ("report/svg.py", False),
        ("why/new.py", False),
    ],
)
def test_the_harness_itself_counts_where_a_launch_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: str, counts: bool
) -> None:
    copy = tmp_path / "checkout"
    source = Path(__file__).parents[2]
    shutil.copytree(source / "harness", copy / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(source / "jobs", copy / "jobs")
    monkeypatch.chdir(copy)

    def identity() -> str:
        code = "from harness.schema.code_identity import harness_identity; print(harness_identity())"
        return run_program([sys.executable, "-c", code], limit_s=60, changes={"PYTHONPATH": str(copy)}).out

    before = identity()
    with (copy / "harness" / edited).open("a") as file:
        file.write("# edited\n")
    assert len(before.strip()) == 12
    assert (identity() != before) == counts


def test_a_launch_that_was_planned_before_an_edit_does_not_run(package: Path) -> None:
    workload = make_workload(model=MODEL)
    planned = code_identity(workload, "")
    check_source(workload, planned)
    (package / "own/nets.py").write_text("")
    with refuses("or MODEL was changed"):
        check_source(workload, planned)


@pytest.mark.slow  # several commands
def test_after_an_edit_nothing_is_done_and_nothing_old_is_reported(
    lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(lab.folder)
    workload = script_workload(lab.folder / "mine.py", [], sync="gradients", batch="global")
    (lab.folder / "mine.py").write_text("a = 1\n")
    sweep = located(workload)
    lab.run(sweep)
    lab.run(sweep)
    (lab.folder / "mine.py").write_text("a = 2\n")
    says(lab.run(sweep), 2, 0, 2)
    folder = lab.results / sweep.name
    assert (read_status(folder).count("done"), read_status(folder).other_code) == (2, 2)
    page = write_report(folder, tmp_path / "reports").read_text()
    assert "of this sweep ran a different code version" in page
