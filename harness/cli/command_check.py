"""``harness check``: did it get worse?"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.errors import UserError
from harness.base.provenance import describe_machine
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import (
    GroupedCommand,
    budget_option,
    context_options,
    defaulted,
    mpi_option,
    refuse_given,
    sweep_argument,
)
from harness.cli.launch_options import refuse_elsewhere
from harness.cli.sweep_argument import find_measurement
from harness.cli.terminal import echo
from harness.report.answer import Answer
from harness.schema.sweep import Study, Sweep

if TYPE_CHECKING:
    from harness.regression.checks import Check
    from harness.regression.measurement import Measurement


@click.command(name="check", cls=GroupedCommand)
@sweep_argument
@click.option("--against", help="Baseline, sweep or SWEEP@COMMIT [default: the last baseline of the same study].")
@click.option("--decide", is_flag=True, help="Train the baseline's commit and the code as it is now in turns.")
@budget_option
@defaulted("--practical", type=click.FloatRange(0, 50), default=3.0, help="Least slowdown, in %.")
@defaulted("--scheduler", default="auto", help="local: in a job of your own on a cluster.")
@format_options
@context_options("results", "baselines", "reports", "data_dir", measures=True)
@answering
@mpi_option
def check_command(
    sweep: str | None,
    against: str | None,
    decide: bool,
    budget: float,
    practical: float,
    scheduler: str,
    context: Context,
) -> Answer:
    """Compare the code as it is now with a baseline, point by point and over the curve.

    With --decide, the baseline's commit and the code as it is now train in turns on this machine until the verdict is
    sure; the records lie in results/checks. Without, the newest launches of SWEEP (by default one of the baseline's
    study, and named) are set beside it, which cannot tell. Exit code 0: nothing got worse, or by less than
    --practical; 1: a regression; 3: inconclusive or cannot tell; 2: cannot compare (another machine, another workload,
    no baseline).
    """
    from harness.report.check_answer import check_answer

    if decide:
        refuse_elsewhere(scheduler)
        result = _measure(sweep, against, practical / 100, 60 * budget, context)
    else:
        refuse_given("without --decide nothing is trained", "budget", "scheduler", "data_dir")
        from harness.regression.baselines import check_comparable, default_reference, read_baselines
        from harness.regression.checks import check_launches
        from harness.regression.measurement import without

        named = find_measurement(against, results=context.results, baselines=context.baselines) if against else None
        references = [named] if named else [saved.measurement for saved in read_baselines(context.baselines)]
        name = sweep or _comparable_sweep(references, context.results)
        current = find_measurement(name, results=context.results, baselines=context.baselines)
        reference = named or default_reference(current, context.baselines)
        check_comparable(reference, current)
        fresh = without(current, reference)
        if not fresh.launches:
            raise UserError(
                f"the newest launches of '{current.label}' are those of '{reference.label}' itself: "
                "measure again with `harness check --decide` (make check DECIDE=1)"
            )
        result = check_launches(reference, fresh, practical=practical / 100)
    words = ["harness", "check", *([sweep] if sweep else []), *(["--against", against] if against else [])]
    return check_answer(result, shlex.join([*words, *(["--decide"] if decide else [])]))


def _measure(sweep: str | None, against: str | None, practical: float, budget_s: float, context: Context) -> "Check":
    """Return the check of the code as it is now against the reference's commit, in turns."""
    from harness.datasets import locate
    from harness.regression.baselines import check_machine, default_reference, saved_measurements
    from harness.regression.version_duel import Version, VersionDuel, checkout, checks_folder, run_duel, why_no_checkout

    if against is not None:
        reference = find_measurement(against, results=context.results, baselines=context.baselines)
    elif sweep is not None:
        current = find_measurement(sweep, results=context.results, baselines=context.baselines)
        reference = default_reference(current, context.baselines)
    else:
        reference = saved_measurements(context.baselines)[0]
    reason = why_no_checkout(reference.software)
    if reason:
        raise UserError(
            f"'{reference.label}' cannot be trained in turns: {reason}; save another with `harness baseline save`"
        )
    locate(reference.workload, context.data_dir, reference.data_id)
    check_machine(reference, describe_machine(gpus=reference.machine.gpus))
    study = Sweep(
        workload=reference.workload,
        layouts=reference.layouts,
        repeats=1,
        scaling=reference.scaling,
        data_id=reference.data_id,
    )
    commit = reference.software.commit
    folder = checks_folder(context.results)
    context.say(
        f"'{reference.label}' (commit {commit[:12]}) and the code as it is now train in turns, at most "
        f"{budget_s / 60:g} minutes; a line follows each block of launches, which takes a minute or more"
    )
    with checkout(commit) as tree:
        old = Version(name=reference.label, sweep=study, tree=tree, commit=commit)
        new = Version(name="now", sweep=study)
        duel = VersionDuel(old, new, folder=folder, data_dir=context.data_dir, budget_s=budget_s)
        return run_duel(duel, practical=practical, say=context.say)


def _comparable_sweep(references: "Sequence[Measurement]", results: Path) -> str | None:
    """Return the sweep that answers for the first of `references` that any can be compared with; None without one."""
    from harness.analysis.sweep_choice import choose_sweep

    for reference in references:
        wanted = (reference.workload, reference.scaling, reference.data_id)

        def same(study: Study, wanted: tuple[object, ...] = wanted) -> bool:
            return (study.sweep.workload, study.sweep.scaling, study.sweep.data_id) == wanted

        choice = choose_sweep(results, same, every_code=True)
        if choice is not None:
            echo(choice.sentence(f"compared with '{reference.label}'"))
            return str(choice.loaded.folder)
    return None
