"""Sweeps as their folders keep what was asked for."""

import shlex
from collections.abc import Sequence
from typing import Any

from harness.cli.command_sweep import sweep_command as sweep_click
from harness.cli.common_options import take
from harness.cli.training_options import LayoutOptions, build_layouts, build_workload, take_workload
from harness.schema.layout import Layout
from harness.schema.presets import usual_scaling
from harness.schema.sweep import Sweep
from harness.sweep.submission_settings import Submission


def asked(line: str) -> Sweep:
    """The sweep that a command line of `harness sweep` stands for, without its data."""
    program, command, *arguments = shlex.split(line)
    assert (program, command) == ("harness", "sweep")
    values: dict[str, Any] = sweep_click.make_context("sweep", arguments).params
    layouts, refused = build_layouts(take(LayoutOptions, values), Submission())
    assert not refused
    return asked_sweep(values, layouts)


def asked_sweep(values: dict[str, Any], layouts: Sequence[Layout]) -> Sweep:
    """Return the sweep that the `values` of the parameters of `harness sweep` stand for, without its data."""
    workload = build_workload(take_workload(values))
    return Sweep(
        workload=workload,
        layouts=tuple(layouts),
        repeats=values["repeats"],
        scaling=values["scaling"] or usual_scaling(workload.preset),
        oversubscribe=values["oversubscribe"],
    )
