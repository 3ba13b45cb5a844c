"""``harness check``: did it get worse?"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.errors import UserError
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import (
    GroupedCommand,
    context_options,
    defaulted,
    sweep_argument,
)
from harness.cli.sweep_argument import find_measurement
from harness.cli.terminal import echo
from harness.report.answer import Answer
from harness.schema.sweep import Study

if TYPE_CHECKING:
    from harness.regression.measurement import Measurement


@click.command(name="check", cls=GroupedCommand)
@sweep_argument
@click.option("--against", help="Baseline, sweep or SWEEP@COMMIT [default: the last baseline of the same study].")
@defaulted("--practical", type=click.FloatRange(0, 50), default=3.0, help="Least slowdown, in %.")
@format_options
@context_options("results", "baselines", "reports")
@answering
def check_command(
    sweep: str | None,
    against: str | None,
    practical: float,
    context: Context,
) -> Answer:
    """Compare the code as it is now with a baseline, point by point and over the curve.

    The newest launches of SWEEP (by default one of the baseline's study, and named) are set beside it. Two commits are
    trained in turns by `harness compare commit:COMMIT here`. Exit code 0: nothing got worse, or by less than
    --practical; 1: a regression; 3: inconclusive or cannot tell; 2: cannot compare (another machine, another workload,
    no baseline).
    """
    from harness.regression.baselines import check_comparable, default_reference, read_baselines
    from harness.regression.checks import check_launches
    from harness.regression.measurement import without
    from harness.report.check_answer import check_answer

    named = find_measurement(against, results=context.results, baselines=context.baselines) if against else None
    references = [named] if named else [saved.measurement for saved in read_baselines(context.baselines)]
    name = sweep or _comparable_sweep(references, context.results)
    current = find_measurement(name, results=context.results, baselines=context.baselines)
    reference = named or default_reference(current, context.baselines)
    check_comparable(reference, current)
    fresh = without(current, reference)
    if not fresh.launches:
        raise UserError(
            f"the newest launches of '{current.label}' are those of '{reference.label}' itself: measure again, or "
            "train two commits in turns by `harness compare commit:COMMIT here`"
        )
    result = check_launches(reference, fresh, practical=practical / 100)
    words = ["harness", "check", *([sweep] if sweep else []), *(["--against", against] if against else [])]
    return check_answer(result, shlex.join(words))


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
