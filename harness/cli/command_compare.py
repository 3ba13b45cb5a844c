"""``harness compare``: what is recorded (sweeps, baselines, launches), or variants that are trained in turns."""

import shlex

import click

from harness.base.command_context import Context
from harness.base.errors import UserError
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import GroupedCommand, context_options, given_command, mpi_option, refuse_given
from harness.cli.sweep_argument import find_measurement
from harness.cli.training_options import TRAINING_OPTIONS
from harness.cli.variant_training import VariantOptions, are_variants, train_variants, variant_options
from harness.report.answer import Answer


@click.command(
    name="compare",
    cls=GroupedCommand,
    brief=(
        "--threshold",
        "--budget",
        "--dataset",
        "--data",
        "--model",
        "--script",
        "--batch-per-rank",
        "--epochs",
        "--samples",
        "--nodes",
        "--results",
        "--reports",
        "--json",
    ),
    examples=(
        "harness compare SWEEP OTHER",
        "harness compare here commit:HEAD~1 --dataset mnist --nodes 1,2",
        "harness compare old.py new.py --nodes 1",
    ),
)
@click.argument("sweep", nargs=-1, metavar="A B [C]...")
@variant_options
@format_options
@context_options("results", "baselines", "reports", "data_dir", measures=True)
@answering
@mpi_option
def compare_command(sweep: tuple[str, ...], training: VariantOptions, context: Context) -> Answer:
    """Compare B, C, ... with A. What is recorded is read; variants are trained interleaved on this machine.

    Recorded are baselines, sweeps, launches, or commits of a sweep (SWEEP@COMMIT). They may differ in anything that
    leaves the rows of an epoch the same; what differs is listed.

    A variant is one of: here (as it is), commit:COMMIT of the harness, a script (.py) or model
    (package.module:function) of yours, a setting (sync=weights:epoch), env:NAME=VALUE (nothing behind = unsets),
    python:PATH (of another environment, with its own TensorFlow and MPI), run:COMMAND (put before each rank's Python).
    Several settings or variables have commas. Workload and layouts are given as for `harness sweep`. They train
    interleaved until it is sure what differs by --threshold or more. The last line is the page's path.
    """
    if are_variants(sweep):
        from harness.report.compare_answer import variants_answer

        return variants_answer(train_variants(sweep, context, training), given_command())
    reason = "sweeps, baselines and launches are compared as they are recorded, and nothing is trained"
    refuse_given(reason, "budget", "scheduler", "data_dir", *TRAINING_OPTIONS)
    return _compare_recorded(sweep, training.threshold / 100, context)


def _compare_recorded(names: tuple[str, ...], threshold: float, context: Context) -> Answer:
    """Return what sets the recorded measurements called `names` against the first of them."""
    from harness.regression.launch_comparison import compare_measurements
    from harness.regression.measurement import without
    from harness.report.compare_answer import comparison_answer

    first, *others = (find_measurement(name, results=context.results, baselines=context.baselines) for name in names)
    compared = [first]
    rows = []
    left_out = []
    for side, measurement in zip(names[1:], others, strict=True):
        distinct = without(measurement, first)
        if not distinct.launches:
            raise UserError(f"'{side}' and '{names[0]}' are the same launches: name another sweep, or measure again")
        compared.append(distinct)
        rows.append(compare_measurements(first, distinct, threshold=threshold))
        left_out.append(len(measurement.launches) - len(distinct.launches))
    return comparison_answer(names, compared, rows, left_out, shlex.join(["harness", "compare", *names]))
