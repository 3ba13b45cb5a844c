"""Two versions in turns: what is refused, and what is really trained."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from harness.base.errors import UserError
from harness.base.processes import run_program
from harness.datasets import locate
from harness.regression import version_duel
from harness.regression.checks import REGRESSION, Check
from harness.regression.version_checkout import HERE, Version, checkout
from harness.regression.version_duel import VersionDuel, run_duel
from harness.regression.version_entry import INTERFACE
from harness.regression.version_samples import SIDES
from harness.schema.layout import Layout
from harness.schema.record import encode, read_point
from harness.schema.sweep import Sweep
from harness.sweep.plan import build_sweep
from tests.labs.factories import make_workload
from tests.labs.sentences import says

LAYOUTS = (Layout(nodes=1), Layout(nodes=2))
STUDY = build_sweep(make_workload(data="synthetic", samples=6000, epochs=30), layouts=LAYOUTS, repeats=1)


def git(*words: str) -> str:
    """Return what git says in this checkout."""
    return subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True, check=True).stdout.strip()


def test_a_version_that_no_other_can_ask_is_told(tmp_path: Path) -> None:
    old = Version(name="main", sweep=STUDY, tree=tmp_path, commit="a" * 40)
    both = VersionDuel(old, Version(name="now", sweep=STUDY), folder=tmp_path / "x", data_dir=None, budget_s=60)
    with pytest.raises(UserError, match="a" * 12):
        run_duel(both, say=print)
    assert not (tmp_path / "x").exists()


def test_launches_that_train_shorter_than_they_start_get_more_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 epochs of 4 s in turns become 150, once; a script's own number of epochs stays."""
    trained: list[int] = []

    def train(self: VersionDuel, say: object) -> pd.DataFrame:
        trained.append(self._versions["new"].sweep.workload.epochs)
        return pd.DataFrame({"round": [0, 1], "at_s": [0.5, 0.5 + 4 * trained[-1] / 30]})

    def prepare(self: VersionDuel) -> None:
        for side in SIDES:
            (self._folder / side).mkdir(parents=True)  # once only: what was measured before is gone
        self._points = {"old": []}

    monkeypatch.setattr(VersionDuel, "_train_until_it_counts", train)
    monkeypatch.setattr(VersionDuel, "prepare", prepare)
    said: list[str] = []
    for name, study in (("own", STUDY), ("script", script_study(STUDY, tmp_path))):
        versions = (Version(name=side, sweep=study) for side in SIDES)
        both = VersionDuel(*versions, folder=tmp_path / name, data_dir=None, budget_s=60)
        assert both.add_block(said.append) and both.add_block(said.append) and len(both.blocks) == 2
    assert trained == [30, 150, 150, 30, 30]
    (line,) = (line for line in said if "epochs" in line)
    says(line, "s in turns: launches", 30, "4 s", 150)


def test_a_version_writes_its_point_files_by_its_own_entry(tmp_path: Path) -> None:
    version = Version(name="now", sweep=STUDY)
    (tmp_path / "sweep.json").write_bytes(encode(STUDY))
    (tmp_path / "points").mkdir()
    words = [*version.entry(), str(INTERFACE), str(tmp_path / "sweep.json"), str(tmp_path / "points")]
    reply = run_program(words, changes=version.environment())
    assert reply.code == 0, reply
    written = [read_point(path) for path in sorted((tmp_path / "points").glob("*.json"))]
    assert [point.layout for point in written] == list(LAYOUTS)


def test_a_version_that_is_asked_by_another_interface_says_so(tmp_path: Path) -> None:
    reply = run_program([*Version(name="now", sweep=STUDY).entry(), "0", "sweep.json", "points"])
    assert reply.code == 1 and "interface" in reply.last_error


def script_study(study: Sweep, folder: Path) -> Sweep:
    """Return `study` of a user's script."""
    workload = replace(study.workload, dataset="script", preset="script", data_file=str(folder / "a.py"))
    return replace(study, workload=workload)


# What a slower version has at the end of its turn_pass.py: steps by way of Python, where each of them waits.
DELAYED = """
import time

_pass_at_once = _pass


def _operations(current):
    return None


def _pass(_):
    time.sleep({seconds})
    return _pass_at_once(_)
"""


# Not with the fixture `warm`: what it starts has imported the harness of this tree.
def compared(folder: Path, *, delay_s: float = 0.0, budget_s: float = 300, epochs: int = 30) -> Check:
    """Return the check of this commit against itself, the new one with `delay_s` more in every step."""
    study = replace(STUDY, workload=replace(STUDY.workload, epochs=epochs))
    commit = git("rev-parse", "HEAD")
    assert STUDY.data_id == locate(STUDY.workload, None).data_id
    with checkout(commit) as tree:
        new = folder / "tree"
        shutil.copytree(tree, new, ignore=shutil.ignore_patterns(".git"))
        if delay_s:
            with (new / "harness/comm/turn_pass.py").open("a") as module:
                module.write(DELAYED.format(seconds=delay_s))
        old = Version(name="then", sweep=study, tree=tree, commit=commit)
        both = VersionDuel(
            old, Version(name="now", sweep=study, tree=new), folder=folder / "x", data_dir=None, budget_s=budget_s
        )
        found = run_duel(both, say=print)
    assert not tree.exists() and str(tree) not in git("worktree", "list")
    assert len(found.rows) == 5 and found.spent is not None and found.spent.rounds > 3 * found.spent.blocks
    assert not found.reference.software.dirty
    assert {launch.layout for launch in found.current.launches} == set(LAYOUTS)
    return found


@pytest.mark.mpi
@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.campaign
def test_a_commit_against_itself_is_no_regression(tmp_path: Path) -> None:
    if not (HERE / ".git").exists():
        pytest.skip("no git checkout")
    found = compared(tmp_path, budget_s=230)
    assert found.verdict != REGRESSION, found.rows


@pytest.mark.mpi
@pytest.mark.e2e
@pytest.mark.alone
def test_a_delay_in_every_step_is_a_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that short blocks show."""
    monkeypatch.setattr(version_duel, "_BLOCK_S", 8.0)
    if not (HERE / ".git").exists():
        pytest.skip("no git checkout")
    found = compared(tmp_path, delay_s=0.002, epochs=10)
    assert found.verdict == REGRESSION, found.rows
