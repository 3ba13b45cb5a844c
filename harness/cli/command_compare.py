"""``harness compare``: sweeps, commits, machines, presets, sync policies; or two scripts or models in turns."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.errors import UserError
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import (
    GroupedCommand,
    budget_option,
    context_options,
    defaulted,
    mpi_option,
    refuse_given,
)
from harness.cli.first_use import fetch_for
from harness.cli.launch_options import refuse_elsewhere
from harness.cli.sweep_argument import find_measurement
from harness.cli.training_options import (
    TRAINING_OPTIONS,
    LayoutOptions,
    WorkloadOptions,
    build_layouts,
    build_workload,
    layout_options,
    workload_options,
)
from harness.report.answer import Answer
from harness.schema.sweep import Sweep

if TYPE_CHECKING:
    from harness.regression.version_duel import Version


@click.command(name="compare", cls=GroupedCommand)
@click.argument("sweep", nargs=-1, metavar="A B [C]...")
@defaulted("--practical", type=click.FloatRange(0, 50), default=3.0, help="Difference, in %.")
@defaulted("--scheduler", default="auto", help="local: in a job of your own on a cluster.")
@budget_option
@workload_options
@layout_options
@format_options
@context_options("results", "baselines", "reports", "data_dir", measures=True)
@answering
@mpi_option
def compare_command(
    sweep: tuple[str, ...],
    practical: float,
    scheduler: str,
    budget: float,
    workload: WorkloadOptions,
    layouts: LayoutOptions,
    context: Context,
) -> Answer:
    """Compare B, C, ... with A: baselines, sweeps, launches, or commits of a sweep (SWEEP@COMMIT).

    They may differ in commit, machine, preset, sync policy or anything else that leaves the rows of an epoch
    the same; what differs is listed. A difference below --practical is none.

    Where A and B are two scripts (.py) or two models (package.module:function) of yours, they train in turns on this
    machine until it is sure. Workload and layouts are given as for `harness sweep`. The last line is the page's path.
    """
    programs = [name for name in sweep if name.endswith(".py") or (":" in name and not Path(name).exists())]
    if len(sweep) < 2 or (programs and (len(sweep) > 2 or len(programs) < 2)):
        wanted = "two scripts or models" if programs else "two or more of sweep, baseline, SWEEP@COMMIT or launch"
        is_mixed = programs and len(programs) < len(sweep)
        raise UserError(f"compare needs {wanted}, not {'one and something else' if is_mixed else len(sweep)}")
    if programs:
        refuse_elsewhere(scheduler)
        from harness.regression.version_duel import VersionDuel, checks_folder, run_duel
        from harness.report.check_answer import check_answer

        old, new = (_version(name, context.data_dir, workload, layouts) for name in sweep)
        folder = checks_folder(context.results)
        duel = VersionDuel(old, new, folder=folder, data_dir=context.data_dir, budget_s=60 * budget)
        result = run_duel(duel, practical=practical / 100, say=context.say)
        answer = check_answer(result, shlex.join(["harness", "compare", *sweep]))
        return replace(answer, code=0)
    reason = "sweeps, baselines and launches are compared as they are recorded, and nothing is trained"
    refuse_given(reason, "budget", "scheduler", "data_dir", *TRAINING_OPTIONS)
    from harness.regression.checks import compare_measurements
    from harness.regression.measurement import without
    from harness.report.compare_answer import comparison_answer

    first, *others = (find_measurement(name, results=context.results, baselines=context.baselines) for name in sweep)
    compared = [first]
    rows = []
    left_out = []
    for side, measurement in zip(sweep[1:], others, strict=True):
        distinct = without(measurement, first)
        if not distinct.launches:
            raise UserError(f"'{side}' and '{sweep[0]}' are the same launches: name another sweep, or measure again")
        compared.append(distinct)
        rows.append(compare_measurements(first, distinct, practical=practical / 100))
        left_out.append(len(measurement.launches) - len(distinct.launches))
    command = shlex.join(["harness", "compare", *sweep])
    return comparison_answer(sweep, compared, rows, left_out, command)


def _version(
    name: str, data_dir: Path | None, workload_options: WorkloadOptions, layout_options: LayoutOptions
) -> "Version":
    """Return the side that `name`, a script's path or a model's ``package.module:function``, stands for."""
    from harness import datasets
    from harness.regression.version_duel import Version
    from harness.sweep.submission_settings import Submission

    if name.endswith(".py"):
        asked = replace(workload_options, script=Path(name))
    else:
        asked = replace(workload_options, settings={**workload_options.settings, "model": name})
    workload = build_workload(asked)
    layouts, _ = build_layouts(layout_options, Submission())
    fetch_for(workload, data_dir)
    data_id = datasets.locate(workload, data_dir).data_id
    sweep = Sweep(workload=workload, layouts=layouts, repeats=1, data_id=data_id)
    return Version(name=name, sweep=sweep)
