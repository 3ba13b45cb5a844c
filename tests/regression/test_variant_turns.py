"""Variants in turns: what is refused, and what is really trained."""

import contextlib
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from harness.base.errors import UserError
from harness.base.processes import run_program
from harness.datasets import locate
from harness.regression import variant_turns
from harness.regression.launch_comparison import WORSE
from harness.regression.variant_turns import Comparison, VariantTurns, run_variants
from harness.regression.variants import HERE, Variant, checkout
from harness.regression.version_entry import INTERFACE
from harness.schema.layout import Layout
from harness.schema.record import encode, read_point, read_run
from harness.schema.sweep import Sweep
from tests.labs.factories import make_workload
from tests.labs.sentences import refuses, says

LAYOUTS = (Layout(nodes=1), Layout(nodes=2))
WORKLOAD = make_workload(data="synthetic", samples=6000, epochs=30)
STUDY = Sweep(workload=WORKLOAD, layouts=LAYOUTS, repeats=1, data_id=locate(WORKLOAD, None).data_id)


def in_turns(folder: Path, *variants: Variant, budget_s: float = 60) -> VariantTurns:
    """Return what trains `variants` in turns and records in `folder`."""
    return VariantTurns(variants, folder=folder, data_dir=None, budget_s=budget_s)


def test_a_commit_that_no_other_can_ask_is_told(tmp_path: Path) -> None:
    old = Variant(name="commit:aaa", sweep=STUDY, tree=tmp_path, commit="a" * 40)
    with pytest.raises(UserError, match="a" * 12):
        run_variants(in_turns(tmp_path / "x", old, Variant(name="here", sweep=STUDY)), say=print)
    assert not (tmp_path / "x").exists()


def test_more_ranks_than_memory_holds_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variant_turns, "memory_limit", lambda: 4 * 2**30)
    variants = [Variant(name=name, sweep=STUDY) for name in ("here", "b", "c")]
    with refuses("3 variants", 9, 6):
        run_variants(in_turns(tmp_path / "x", *variants), say=print)
    assert not (tmp_path / "x").exists()


def test_a_layout_that_cannot_run_here_is_refused(tmp_path: Path) -> None:
    wide = replace(STUDY, layouts=(Layout(nodes=1, threads=4096),))
    with refuses(4096, "cores"):
        in_turns(tmp_path / "x", *(Variant(name=name, sweep=wide) for name in ("here", "b"))).prepare(print)


@pytest.mark.parametrize(("program", "reason"), [("true", "0 of 16 launches"), ("false", "exit code 1")])
def test_a_prefix_that_does_not_start_the_python_is_told_before_anything_starts(
    tmp_path: Path, program: str, reason: str
) -> None:
    study = replace(STUDY, layouts=LAYOUTS[:1])
    idle = Variant(name=f"run:{program}", sweep=study, prefix=(program,))
    with refuses(f"run:{program}", reason):
        in_turns(tmp_path / "x", idle, Variant(name="here", sweep=study)).prepare(print)
    assert not (tmp_path / "x").exists()


def test_launches_that_train_shorter_than_they_start_get_more_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 epochs of 4 s in turns become 150, once; a script's own number of epochs stays."""
    trained: list[int] = []

    def train(self: VariantTurns, say: object) -> pd.DataFrame:
        trained.append(self.variants[1].sweep.workload.epochs)
        return pd.DataFrame({"round": [0, 1], "at_s": [0.5, 0.5 + 4 * trained[-1] / 30]})

    monkeypatch.setattr(VariantTurns, "train_block", train)
    monkeypatch.setattr(variant_turns, "remove_contents", lambda _: None)
    monkeypatch.setattr(VariantTurns, "write_points", lambda _: None)
    said: list[str] = []
    for name, study in (("own", STUDY), ("script", script_study(STUDY, tmp_path))):
        both = in_turns(tmp_path / name, *(Variant(name=side, sweep=study) for side in ("here", "b")))
        assert both.add_block(said.append) and both.add_block(said.append) and len(both.blocks) == 2
    assert trained == [30, 150, 150, 30, 30]
    (line,) = (line for line in said if "epochs" in line)
    says(line, "s interleaved: launches", 30, "4 s", 150)


def test_a_variant_writes_its_point_files_by_its_own_entry(tmp_path: Path) -> None:
    variant = Variant(name="here", sweep=STUDY)
    (tmp_path / "sweep.json").write_bytes(encode(STUDY))
    (tmp_path / "points").mkdir()
    words = [*variant.entry(), str(INTERFACE), str(tmp_path / "sweep.json"), str(tmp_path / "points")]
    reply = run_program(words, changes=variant.environment())
    assert reply.code == 0, reply
    written = [read_point(path) for path in sorted((tmp_path / "points").glob("*.json"))]
    assert [point.layout for point in written] == list(LAYOUTS)


def test_a_version_that_is_asked_by_another_interface_says_so() -> None:
    reply = run_program([*Variant(name="here", sweep=STUDY).entry(), "0", "sweep.json", "points"])
    assert reply.code == 1 and "interface" in reply.last_error


def script_study(study: Sweep, folder: Path) -> Sweep:
    """Return `study` of a user's script."""
    workload = replace(study.workload, dataset="script", preset="script", data_file=str(folder / "a.py"))
    return replace(study, workload=workload)


@pytest.mark.mpi
@pytest.mark.e2e
def test_variants_of_other_environments_and_pythons_train_in_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of all are started, for what each finds in its environment is what a comparison is of."""
    monkeypatch.setattr(variant_turns, "BLOCK_S", 0.0)  # as short as it is asked for
    study = replace(STUDY, layouts=LAYOUTS[1:], workload=replace(STUDY.workload, epochs=2))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec env TF_NUM_INTEROP_THREADS=1 {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "mpirun").symlink_to(Path(sys.executable).parent / "mpirun")
    variants = (
        Variant(name="here", sweep=study),
        Variant(name="env:", sweep=study, variables={"HARNESS_REDUCTION": "messages", "OMPI_MCA_pml": None}),
        Variant(name="python:", sweep=study, python=str(python), prefix=("env", "OMP_WAIT_POLICY=passive")),
    )
    turns = in_turns(tmp_path / "x", *variants, budget_s=600)
    with contextlib.ExitStack() as stack:
        turns.prepare(print)
        turns.start_pythons(stack, tmp_path)  # none: one is behind a prefix
        assert turns.add_block(print)
    found = turns.compare(0.03)
    records = [read_run(next((tmp_path / "x" / str(number)).glob("*/run.json")).parent) for number in range(3)]
    assert len({record.block for record in records}) == 1
    assert [record.provenance.algorithm for record in records] == ["native", "messages", "native"]
    environments = [record.provenance.environment for record in records]
    assert [environment.get("OMP_WAIT_POLICY") for environment in environments] == [None, None, "passive"]
    assert [environment.get("TF_NUM_INTEROP_THREADS") for environment in environments] == [None, None, "1"]
    assert len(found.rows) == 2 and all(row.launches == (1, 1) for rows in found.rows for row in rows)
    assert not found.is_sure


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
def compared(folder: Path, *, delay_s: float = 0.0, budget_s: float = 300, epochs: int = 30) -> Comparison:
    """Return the comparison of this commit with itself, the second with `delay_s` more in every step."""
    if not (HERE / ".git").exists():
        pytest.skip("no git checkout")
    study = replace(STUDY, workload=replace(STUDY.workload, epochs=epochs))
    assert STUDY.data_id == locate(STUDY.workload, None).data_id
    with checkout("HEAD") as (tree, commit):
        new = folder / "tree"
        shutil.copytree(tree, new, ignore=shutil.ignore_patterns(".git"))
        if delay_s:
            with (new / "harness/comm/turn_pass.py").open("a") as module:
                module.write(DELAYED.format(seconds=delay_s))
        old = Variant(name="commit:HEAD", sweep=study, tree=tree, commit=commit)
        slower = Variant(name="delayed", sweep=study, tree=new)
        found = run_variants(in_turns(folder / "x", old, slower, budget_s=budget_s), say=print)
    listed = subprocess.run(["git", "-C", HERE, "worktree", "list"], capture_output=True, text=True, check=True)
    assert not tree.exists() and str(tree) not in listed.stdout
    (rows,) = found.rows
    assert len(rows) == 5 and found.spent.rounds > 3 * found.spent.blocks
    assert not found.measured[0].software.dirty
    assert {launch.layout for launch in found.measured[1].launches} == set(LAYOUTS)
    return found


@pytest.mark.mpi
@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.campaign
def test_a_commit_beside_itself_is_not_slower(tmp_path: Path) -> None:
    found = compared(tmp_path, budget_s=230)
    assert WORSE not in {row.verdict for row in found.rows[0] if row.decides}, found.rows


@pytest.mark.mpi
@pytest.mark.e2e
@pytest.mark.alone
def test_a_delay_in_every_step_is_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that short blocks show."""
    monkeypatch.setattr(variant_turns, "BLOCK_S", 8.0)
    found = compared(tmp_path, delay_s=0.002, epochs=10)
    assert {row.verdict for row in found.rows[0] if row.decides} == {WORSE}, found.rows
