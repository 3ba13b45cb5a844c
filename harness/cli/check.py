"""``harness check``: did it get worse? The exit code says it to a CI job."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from harness.cli.options import batch_options, duet_elsewhere, more_launches, refuse_batch
from harness.report.answer import Answer, markdown

if TYPE_CHECKING:
    from harness.regression.checks import Check
    from harness.regression.significance import Thresholds
    from harness.schema.measurement import Baseline, Measurement
    from harness.schema.sweep import Study


@click.command(name="check", cls=GroupedCommand)
@sweep_argument
@click.option("--against", help="Baseline, sweep or SWEEP@COMMIT [default: the last baseline of the same study].")
@click.option("--window", type=click.IntRange(2, 100), help="Compare the newest session with as many before it.")
@click.option("--decide", is_flag=True, help="Measure the code as it is now, until there is a verdict.")
@click.option("--duet/--apart", default=None, help="Launch baseline and now in turn [default: if its commit is here].")
@budget_option
@click.option(
    "--size", type=click.FloatRange(1, 90), default=10.0, show_default=True, help="Slowdown not to miss, in %."
)
@click.option("--practical", type=click.FloatRange(0, 50), default=3.0, show_default=True, help="Least slowdown, in %.")
@click.option("--markdown", "summary", type=click.Path(path_type=Path), help="Write the result for a pull request.")
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), help="Write the result for a CI system.")
@batch_options
@data_dir_option
@results_option
@baselines_option
@reports_option
@answering
def check(
    sweep: str | None,
    against: str | None,
    window: int | None,
    decide: bool,
    duet: bool | None,
    budget: float,
    size: float,
    practical: float,
    summary: Path | None,
    junit_file: Path | None,
    data_dir: Path | None,
    results: Path,
    baselines: Path,
    reports: Path,
    **options: Any,
) -> Answer:
    """Compare the newest launches of SWEEP with a baseline, point by point and over the curve.

    SWEEP is by default one of the baseline's study, and is named. Exit code 0: nothing got worse; 1: a regression;
    3: inconclusive, it says how many launches are missing; 2: cannot compare (another machine, another workload, no
    baseline). With --decide, launches are made as `harness sweep` makes them, by Slurm or PBS where one is; they lie in
    results/checks and are on no page of the study.
    """
    from harness.regression.significance import Thresholds
    from harness.report.check_page import check_answer, junit
    from harness.report.publish import write_page

    if duet is not None and not decide:
        raise UserError("--duet and --apart say how to measure: give --decide too (make check DECIDE=1)")
    if window and (decide or against):
        raise UserError("--window takes its reference from earlier sessions: leave out --decide and --against")
    if practical >= size:
        raise UserError(
            f"--practical {practical:g} must be below --size {size:g}: a slowdown not to miss has to be a practical one"
        )
    limits, folders = Thresholds(size=size / 100, practical=practical / 100), (results, baselines)
    if decide:
        result, kept = _measure(sweep, against, duet, limits, 60 * budget, data_dir, options, *folders)
    else:
        refuse_batch("give --decide too (make check DECIDE=1)")
        result, kept = _compare(sweep, against, window, limits, *folders)
    words = ["harness", "check", *([sweep] if sweep else []), *(["--against", against] if against else [])]
    words += ["--window", str(window)] if window else []
    answer = check_answer(result, kept, shlex.join([*words, *(["--decide"] if decide else [])]))
    if summary:
        write_atomic(summary, markdown(answer))
    if junit_file:
        write_atomic(junit_file, junit(result, answer))
    return write_page(answer, reports, results)


def _compare(
    sweep: str | None, against: str | None, window: int | None, limits: "Thresholds", results: Path, baselines: Path
) -> "tuple[Check, tuple[Baseline, ...]]":
    """Return the check of launches that are there, and the A/A launches it used."""
    from harness.cli.select import find_measurement
    from harness.regression.baselines import (
        check_comparable,
        default_reference,
        find_noises,
        measurements_of,
        read_baselines,
    )
    from harness.regression.checks import check_sessions
    from harness.regression.measurements import last_sessions, without

    if window:
        study = find_measurement(sweep, results=results, baselines=baselines)
        reference, fresh = last_sessions(measurements_of(study, results=results, baselines=baselines), window)
    else:
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
    kept = find_noises(reference, baselines)
    return check_sessions(reference, fresh, [one.measurement for one in kept], limits=limits), kept


def _measure(
    sweep: str | None,
    against: str | None,
    duet: bool | None,
    limits: "Thresholds",
    budget_s: float,
    data_dir: Path | None,
    options: dict[str, Any],
    results: Path,
    baselines: Path,
) -> "tuple[Check, tuple[Baseline, ...]]":
    """Return the check of the code as it is now, and the A/A launches it used."""
    from harness.base.provenance import describe_machine
    from harness.cli.select import find_measurement
    from harness.datasets import locate
    from harness.regression.baselines import default_reference, find_noises, kept_baselines
    from harness.regression.sequential_test import measure_until_decided

    if against is not None:
        reference = find_measurement(against, results=results, baselines=baselines)
    elif sweep is not None:
        reference = default_reference(find_measurement(sweep, results=results, baselines=baselines), baselines)
    else:
        reference = kept_baselines(baselines)[0]
    locate(reference.workload, data_dir, reference.data_id)
    launches = more_launches(reference, options, results=results, data_dir=data_dir, budget_s=budget_s)
    if _in_turn(reference, duet, launches.scheduler):
        return _duet(reference, limits, budget_s, data_dir, results), ()
    kept = find_noises(reference, baselines)
    same_code = [one.measurement for one in kept]
    here = describe_machine(gpus=reference.machine.gpus) if launches.scheduler == "local" else None
    return measure_until_decided(reference, same_code, launches, machine=here, limits=limits, say=click.echo), kept


def _in_turn(reference: "Measurement", duet: bool | None, scheduler: str) -> bool:
    """Return whether the reference's commit and the code as it is now are to be launched in turn; say why not."""
    from harness.regression.duet import why_no_checkout

    if duet is False:
        return False
    reason = why_no_checkout(reference.software) if scheduler == "local" else duet_elsewhere(scheduler)
    if reason and duet:
        raise UserError(f"no duet with '{reference.label}': {reason}; measure it alone with --apart")
    if reason:
        click.echo(f"no duet with '{reference.label}': {reason}; launches of today are compared with those of then")
    return not reason


def _duet(
    reference: "Measurement", limits: "Thresholds", budget_s: float, data_dir: Path | None, results: Path
) -> "Check":
    """Return the check of the code as it is now against the reference's commit, launched in turn."""
    from harness.regression.duet import Duet, Version, checkout, decide_duet, duet_folder
    from harness.regression.sequential_test import study_of

    study, commit = study_of(reference), reference.software.commit
    with checkout(commit) as tree:
        old = Version(name=reference.label, sweep=study, tree=tree, commit=commit)
        duet = Duet(
            old, Version(name="now", sweep=study), folder=duet_folder(results), data_dir=data_dir, budget_s=budget_s
        )
        return decide_duet(duet, limits=limits, say=click.echo)


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
