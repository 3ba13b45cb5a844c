"""``harness policies``: sync policies side by side, at equal samples and at equal accuracy."""

import click

from harness.base.command_context import Context
from harness.cli.answer_output import answering
from harness.cli.common_options import GroupedCommand, NumberRange, context_options, given_command, refuse_given
from harness.cli.sweep_argument import find_sweep
from harness.cli.training_options import TRAINING_OPTIONS
from harness.cli.variant_training import VariantOptions, are_variants, train_variants, variant_options
from harness.report.answer import Answer


@click.command(
    name="policies",
    cls=GroupedCommand,
    brief=(
        "--target",
        "--threshold",
        "--budget",
        "--dataset",
        "--data",
        "--model",
        "--batch-per-rank",
        "--epochs",
        "--samples",
        "--nodes",
        "--results",
        "--reports",
        "--json",
    ),
    examples=(
        "harness policies sync=gradients sync=weights:epoch --dataset mnist --nodes 1,2",
        "harness policies SWEEP OTHER --target 0.97",
        "harness policies SWEEP OTHER --json",
    ),
)
@click.argument("sweep", nargs=-1, required=True, metavar="SWEEP...")
@click.option("--target", type=NumberRange(0, 1), help="Test accuracy to reach, such as 0.97.")
@variant_options
@context_options("results", "reports", "data_dir", measures=True)
@answering
def policies_command(
    sweep: tuple[str, ...], target: float | None, training: VariantOptions, context: Context
) -> Answer:
    """Which sync policy has the accuracy first? Set SWEEPs, such as those of several policies, side by side.

    Instead of sweeps variants (sync=gradients sync=weights:epoch, as for `harness compare`) are trained first,
    interleaved.
    """
    from harness.report.policies_answer import policies_answer

    if are_variants(sweep):
        comparison = train_variants(sweep, context, training)
        return policies_answer(comparison.folders, context.reports, target, titles=sweep, command=given_command())
    reason = "sweeps are set side by side as they are recorded, and nothing is trained"
    refuse_given(reason, "threshold", "budget", "scheduler", "data_dir", *TRAINING_OPTIONS)
    return policies_answer([find_sweep(name, context.results) for name in sweep], context.reports, target)
