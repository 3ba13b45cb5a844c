"""Sweeps as their folders keep what was asked for."""

import shlex
from typing import Any

from harness.cli.command_make import command_line
from harness.cli.command_sweep import sweep_command as sweep_click
from harness.cli.training_options import build_layouts, build_workload
from harness.schema.sweep import Sweep
from harness.sweep.submission_settings import Submission


def asked(line: str) -> Sweep:
    """The sweep that a command line of `make sweep` stands for, without its data."""
    make, target, *words = shlex.split(line)
    given = dict(word.replace("$$", "$").split("=", 1) for word in words)
    assert (make, target) == ("make", "sweep")
    _, *arguments = command_line("sweep", given)
    options: dict[str, Any] = sweep_click.make_context("sweep", arguments).params
    layouts, refused = build_layouts(options, Submission())
    assert not refused
    return Sweep(
        workload=build_workload(options),
        layouts=layouts,
        **{name: options[name] for name in ("repeats", "scaling", "oversubscribe")},
    )
