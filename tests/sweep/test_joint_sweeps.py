"""Several sweeps that share their blocks: what they can do, and what only one sweep can."""

from pathlib import Path

from harness.base.command_context import Context
from harness.schema.layout import Layout
from harness.schema.sweep import Sweep
from harness.sweep.joint_sweeps import JoinedSweeps
from harness.sweep.planned_launches import PlannedLaunches, SweepCommand
from harness.sweep.submission_settings import Submission
from tests.labs.factories import make_workload


def test_every_method_of_joined_sweeps_has_what_it_needs(tmp_path: Path) -> None:
    """Cost and further repeats are of one sweep: they need its layouts, which several have not in common."""
    sweeps = [
        Sweep(workload=make_workload(data="synthetic", sync=sync), layouts=(Layout(nodes=1),), repeats=1)
        for sync in ("gradients", "weights:epoch")
    ]
    joined = JoinedSweeps([SweepCommand(sweep, Context(results=tmp_path), Submission()) for sweep in sweeps], tmp_path)
    joined.note()
    plan = joined.plan(invalid_too=True)
    assert len(plan.missing) == 2 and plan.folder.parent == tmp_path
    assert joined.once_more(plan).missing == ()  # both are missing, which is more than half
    of_one_sweep = set(vars(SweepCommand)) - set(vars(PlannedLaunches))
    assert {"cost", "widen", "take_in"} <= of_one_sweep and not any(hasattr(joined, name) for name in ("cost", "widen"))
