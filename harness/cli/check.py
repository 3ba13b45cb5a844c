"""``harness check``: did it get worse? The exit code says it to a CI job."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.cli.answering import answering
from harness.cli.common import (
    GroupedCommand,
    baselines_option,
    budget_option,
    data_dir_option,
    reports_option,
    results_option,
    sweep_argument,
)
from harness.cli.options import refuse_elsewhere
from harness.report.answer import Answer, markdown

if TYPE_CHECKING:
    from harness.regression.checks import Check
    from harness.schema.measurement import Measurement
    from harness.schema.sweep import Study


@click.command(name="check", cls=GroupedCommand)
@sweep_argument
@click.option("--against", help="Baseline, sweep or SWEEP@COMMIT [default: the last baseline of the same study].")
@click.option("--decide", is_flag=True, help="Train the baseline's commit and the code as it is now in turns.")
@budget_option
@click.option("--practical", type=click.FloatRange(0, 50), default=3.0, show_default=True, help="Least slowdown, in %.")
@click.option("--markdown", "summary", type=click.Path(path_type=Path), help="Write the result for a pull request.")
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), help="Write the result for a CI system.")
@click.option("--scheduler", default="auto", show_default=True, help="local: in a job of your own on a cluster.")
@data_dir_option
@results_option
@baselines_option
@reports_option
@answering
def check(
    sweep: str | None,
    against: str | None,
    decide: bool,
    budget: float,
    practical: float,
    summary: Path | None,
    junit_file: Path | None,
    scheduler: str,
    data_dir: Path | None,
    results: Path,
    baselines: Path,
    reports: Path,
) -> Answer:
    """Compare the code as it is now with a baseline, point by point and over the curve.

    With --decide, the baseline's commit and the code as it is now train in turns on this machine until the verdict is
    sure; the records lie in results/checks. Without, the newest launches of SWEEP (by default one of the baseline's
    study, and named) are compared: launches of different sessions cannot tell. Exit code 0: nothing got worse, or by
    less than --practical; 1: a regression; 3: inconclusive; 2: cannot compare (another machine, another workload, no
    baseline).
    """
    from harness.report.check_page import check_answer, junit
    from harness.report.publish import write_page

    if decide:
        refuse_elsewhere(scheduler)
        result = _measure(sweep, against, practical / 100, 60 * budget, data_dir, results, baselines)
    else:
        result = _compare(sweep, against, practical / 100, results, baselines)
    words = ["harness", "check", *([sweep] if sweep else []), *(["--against", against] if against else [])]
    answer = check_answer(result, shlex.join([*words, *(["--decide"] if decide else [])]))
    if summary:
        write_atomic(summary, markdown(answer))
    if junit_file:
        write_atomic(junit_file, junit(result, answer))
    return write_page(answer, reports, results)


def _compare(sweep: str | None, against: str | None, practical: float, results: Path, baselines: Path) -> "Check":
    """Return the check of launches that are there."""
    from harness.cli.select import find_measurement
    from harness.regression.baselines import check_comparable, default_reference, read_baselines
    from harness.regression.checks import check_launches
    from harness.regression.measurements import without

    given = find_measurement(against, results=results, baselines=baselines) if against else None
    known = [given] if given else [one.measurement for one in read_baselines(baselines)]
    name = sweep or _comparable_sweep(known, results)
    current = find_measurement(name, results=results, baselines=baselines)
    reference = given or default_reference(current, baselines)
    check_comparable(reference, current)
    fresh = without(current, reference)
    if not fresh.launches:
        raise UserError(
            f"the newest launches of '{current.label}' are those of '{reference.label}' itself: "
            "measure again with `harness check --decide` (make check DECIDE=1)"
        )
    return check_launches(reference, fresh, practical=practical)


def _measure(
    sweep: str | None,
    against: str | None,
    practical: float,
    budget_s: float,
    data_dir: Path | None,
    results: Path,
    baselines: Path,
) -> "Check":
    """Return the check of the code as it is now against the reference's commit, in turns."""
    from harness.base.provenance import describe_machine
    from harness.cli.select import find_measurement
    from harness.datasets import locate
    from harness.regression.baselines import CHECKS, check_machine, default_reference, kept_baselines
    from harness.regression.opponents import Opponents, checks_folder, decide
    from harness.regression.versions import Version, checkout, why_no_checkout
    from harness.schema.sweep import Sweep

    if against is not None:
        reference = find_measurement(against, results=results, baselines=baselines)
    elif sweep is not None:
        reference = default_reference(find_measurement(sweep, results=results, baselines=baselines), baselines)
    else:
        reference = kept_baselines(baselines)[0]
    reason = why_no_checkout(reference.software)
    if reason:
        raise UserError(
            f"'{reference.label}' cannot be trained in turns: {reason}; save another with `harness baseline save`"
        )
    locate(reference.workload, data_dir, reference.data_id)
    check_machine(reference, describe_machine(gpus=reference.machine.gpus))
    study = Sweep(
        workload=reference.workload,
        layouts=reference.layouts,
        repeats=1,
        scaling=reference.scaling,
        data_id=reference.data_id,
    )
    commit, folder = reference.software.commit, checks_folder(results / CHECKS)
    click.echo(
        f"'{reference.label}' (commit {commit[:12]}) and the code as it is now train in turns, at most "
        f"{budget_s / 60:g} minutes; a line follows each block of launches, which takes a minute or more"
    )
    with checkout(commit) as tree:
        old = Version(name=reference.label, sweep=study, tree=tree, commit=commit)
        new = Version(name="now", sweep=study)
        opponents = Opponents(old, new, folder=folder, data_dir=data_dir, budget_s=budget_s)
        return decide(opponents, practical=practical, say=click.echo)


def _comparable_sweep(references: "Sequence[Measurement]", results: Path) -> str | None:
    """Return the sweep that answers for the first of `references` that any can be compared with; None without one."""
    from harness.analysis.read_results import choose_sweep

    for reference in references:
        wanted = (reference.workload, reference.scaling, reference.data_id)

        def same(study: "Study", wanted: tuple[object, ...] = wanted) -> bool:
            return (study.sweep.workload, study.sweep.scaling, study.sweep.data_id) == wanted

        found = choose_sweep(results, same, every_code=True)
        if found is not None:
            click.echo(found.sentence(f"compared with '{reference.label}'"))
            return str(found.loaded.folder)
    return None
