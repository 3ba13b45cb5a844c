"""Several sweeps that share their blocks: one plan for the launches of all."""

import math
from pathlib import Path

from harness.base.command_context import Context
from harness.schema.layout import Layout
from harness.schema.sweep import Sweep
from harness.sweep.execute import JoinedSweeps
from harness.sweep.planned_launches import SweepCommand
from harness.sweep.submission_settings import Submission
from tests.labs.factories import make_workload


def test_joined_sweeps_have_one_plan(tmp_path: Path) -> None:
    sweeps = [
        Sweep(workload=make_workload(data="synthetic", sync=sync), layouts=(Layout(nodes=1),), repeats=1)
        for sync in ("gradients", "weights:epoch")
    ]
    joined = JoinedSweeps([SweepCommand(sweep, Context(results=tmp_path), Submission()) for sweep in sweeps], tmp_path)
    plan = joined.wanted.plan(joined.survey(), free_bytes=math.inf)
    assert len(plan.missing) == 2 and plan.wanted.folder.parent == tmp_path
    again, _ = plan.once_more(joined.survey(), free_bytes=math.inf)
    assert again.missing == ()  # both are missing, which is more than half
    assert not list(tmp_path.glob("*/study.json"))


def test_planning_says_nothing(tmp_path: Path, capsys: object) -> None:
    sweep = Sweep(workload=make_workload(data="synthetic"), layouts=(Layout(nodes=1),), repeats=2)
    command = SweepCommand(sweep, Context(results=tmp_path), Submission())
    plan = command.wanted.plan(command.survey(), free_bytes=math.inf)
    assert len(plan.jobs) > 0
    assert capsys.readouterr().out == ""  # type: ignore[attr-defined]
    assert "2 to run" in plan.sentences(of_other_code=0)[0]
