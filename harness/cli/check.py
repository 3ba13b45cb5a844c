"""``harness check``: did it get worse? ``harness baseline``: what to check against. ``compare`` and ``history``."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.provenance import describe_machine
from harness.base.user_path import UserPath
from harness.cli import common
from harness.cli.first_use import fetch_for
from harness.cli.options import (
    build_layouts,
    build_workload,
    find_measurement,
    layout_options,
    refuse_elsewhere,
    workload_options,
)
from harness.report.answer import Answer
from harness.schema.sweep import Study, Sweep

if TYPE_CHECKING:
    from harness.regression.baselines import Measurement
    from harness.regression.checks import Check
    from harness.regression.opponents import Version


@click.command(name="check", cls=common.GroupedCommand)
@common.sweep_argument
@click.option("--against", help="Baseline, sweep or SWEEP@COMMIT [default: the last baseline of the same study].")
@click.option("--decide", is_flag=True, help="Train the baseline's commit and the code as it is now in turns.")
@common.budget_option
@common.defaulted("--practical", type=click.FloatRange(0, 50), default=3.0, help="Least slowdown, in %.")
@click.option("--markdown", "summary", type=UserPath(), help="Write the result for a pull request.")
@click.option("--junit", "junit_file", type=UserPath(), help="Write the result for a CI system.")
@common.defaulted("--scheduler", default="auto", help="local: in a job of your own on a cluster.")
@common.data_dir_option
@common.all_folder_options
@common.answering
def check(
    sweep: str | None,
    against: str | None,
    decide: bool,
    budget: float,
    practical: float,
    junit_file: Path | None,
    scheduler: str,
    data_dir: Path | None,
    results: Path,
    baselines: Path,
    **_: object,
) -> Answer:
    """Compare the code as it is now with a baseline, point by point and over the curve.

    With --decide, the baseline's commit and the code as it is now train in turns on this machine until the verdict is
    sure; the records lie in results/checks. Without, the newest launches of SWEEP (by default one of the baseline's
    study, and named) are set beside it, which cannot tell. Exit code 0: nothing got worse, or by less than
    --practical; 1: a regression; 3: inconclusive or cannot tell; 2: cannot compare (another machine, another workload,
    no baseline).
    """
    from harness.report.compare_page import check_answer, junit

    if decide:
        refuse_elsewhere(scheduler)
        result = _measure(sweep, against, practical / 100, 60 * budget, data_dir, results, baselines)
    else:
        result = _compare(sweep, against, practical / 100, results, baselines)
    words = ["harness", "check", *([sweep] if sweep else []), *(["--against", against] if against else [])]
    answer = check_answer(result, shlex.join([*words, *(["--decide"] if decide else [])]))
    if junit_file:
        write_atomic(junit_file, junit(result, answer))
    return answer


def _compare(sweep: str | None, against: str | None, practical: float, results: Path, baselines: Path) -> "Check":
    """Return the check of launches that are there."""
    from harness.regression.baselines import check_comparable, default_reference, read_baselines, without
    from harness.regression.checks import check_launches

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
    from harness.datasets import locate
    from harness.regression.baselines import check_machine, default_reference, kept_baselines
    from harness.regression.opponents import Opponents, Version, checkout, checks_folder, decide, why_no_checkout

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
    commit, folder = reference.software.commit, checks_folder(results)
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

        def same(study: Study, wanted: tuple[object, ...] = wanted) -> bool:
            return (study.sweep.workload, study.sweep.scaling, study.sweep.data_id) == wanted

        found = choose_sweep(results, same, every_code=True)
        if found is not None:
            click.echo(found.sentence(f"compared with '{reference.label}'"))
            return str(found.loaded.folder)
    return None


@click.group(name="baseline")
def baseline() -> None:
    """Keep, list and show baselines: files in results/baselines that a person can review and commit."""


@baseline.command(name="save")
@click.argument("name")
@common.sweep_argument
@click.option("--note", default="", help="One sentence for whoever reads it later.")
@click.option("--replace", is_flag=True, help="Replace a baseline of this name.")
@common.results_option
@common.baselines_option
def save(name: str, sweep: str | None, note: str, replace: bool, results: Path, baselines: Path) -> None:
    """Keep the newest commit's valid launches of SWEEP (default: the newest sweep) as baseline NAME.

    SWEEP@COMMIT keeps those of another commit. Each layout needs 6 launches.
    """
    from harness.regression.baselines import save_baseline

    measurement = find_measurement(sweep, results=results, baselines=None)
    click.echo(save_baseline(measurement, name, baselines, note=note, replace_it=replace))


@baseline.command(name="list")
@common.baselines_option
def list_all(baselines: Path) -> None:
    """List every baseline: workload, layouts, launches, commit, machine."""
    from harness.analysis.numbers import moment
    from harness.regression.baselines import machine_line, read_baselines

    rows = []
    for kept in read_baselines(baselines):
        one = kept.measurement
        ranks = ",".join(str(layout.ranks) for layout in one.layouts)
        fewest = str(min(len(one.of(layout)) for layout in one.layouts))
        facts = (ranks, fewest, one.state, moment(kept.saved), machine_line(one.machine))
        rows.append((kept.name, one.workload.name, *facts))
    if not rows:
        click.echo(f"no baseline in '{baselines}': save one with `harness baseline save NAME`")
        return
    common.print_table(("Name", "Workload", "Ranks", "Launches", "Commit", "Saved (UTC)", "Machine"), rows)


@baseline.command(name="show")
@click.argument("name")
@common.baselines_option
def show(name: str, baselines: Path) -> None:
    """Show what baseline NAME holds: every layout's epoch time and efficiency, settings, versions."""
    from harness.analysis.numbers import moment
    from harness.regression.baselines import find_baseline, machine_line
    from harness.regression.checks import quantity_value, samples

    kept = find_baseline(name, baselines)
    one = kept.measurement
    rows = [
        (
            sample.quantity,
            str(sample.layout.ranks) if sample.layout else "all",
            quantity_value(sample.quantity, sample.value),
            str(len(sample.costs)),
        )
        for sample in samples(one, one, one.layouts)
    ]
    common.print_table(("Quantity", "Ranks", "Median", "Launches"), rows)
    facts = {
        "Saved": f"{moment(kept.saved)} UTC" + (f": {kept.note}" if kept.note else ""),
        "Commit": one.state,
        "Machine": machine_line(one.machine),
        "Training": f"{one.workload.name}, {one.workload.preset}, {one.scaling} scaling, {one.data_id}",
        "Versions": f"TensorFlow {one.software.tensorflow}, {one.software.mpi_library}, Python {one.software.python}",
    }
    for title, fact in facts.items():
        click.echo(f"{title}: {fact}")


@click.command(name="compare", cls=common.GroupedCommand)
@click.argument("sweep", nargs=-1, metavar="A B [C]...")
@common.defaulted("--practical", type=click.FloatRange(0, 50), default=3.0, help="Difference, in %.")
@common.defaulted("--scheduler", default="auto", help="local: in a job of your own on a cluster.")
@common.budget_option
@common.all_folder_options
@workload_options
@layout_options
@common.answering
def compare(
    sweep: tuple[str, ...],
    practical: float,
    scheduler: str,
    budget: float,
    results: Path,
    baselines: Path,
    **options: Any,
) -> Answer:
    """Compare B, C, ... with A: baselines, sweeps, launches, or commits of a sweep (SWEEP@COMMIT).

    They may differ in commit, machine, preset, sync policy or anything else that leaves the rows of an epoch
    the same; what differs is listed. A difference below --practical is none.

    Where A and B are two scripts (.py) or two models (package.module:function) of yours, they train in turns on this
    machine until it is sure. Workload and layouts are given as for `harness sweep`. The last line is the page's path.
    """
    own = [name.endswith(".py") or (":" in name and not Path(name).exists()) for name in sweep]
    if len(sweep) < 2 or (any(own) and (len(sweep) > 2 or not all(own))):
        what = "two scripts or models" if any(own) else "two or more of sweep, baseline, SWEEP@COMMIT or launch"
        raise UserError(f"compare needs {what}, not {len(sweep) if len(set(own)) < 2 else 'one and something else'}")
    if all(own):
        refuse_elsewhere(scheduler)
        return _in_turns(sweep, practical / 100, 60 * budget, results, options)
    return _side_by_side(sweep, practical / 100, results, baselines)


def _side_by_side(sides: tuple[str, ...], practical: float, results: Path, baselines: Path) -> Answer:
    from harness.regression.baselines import without
    from harness.regression.checks import compare_measurements
    from harness.report.compare_page import comparison_answer

    first, *others = (find_measurement(name, results=results, baselines=baselines) for name in sides)
    measured, rows, left_out = [first], [], []
    for side, given in zip(sides[1:], others, strict=True):
        other = without(given, first)
        if not other.launches:
            raise UserError(f"'{side}' and '{sides[0]}' are the same launches: name another sweep, or measure again")
        measured.append(other)
        rows.append(compare_measurements(first, other, practical=practical))
        left_out.append(len(given.launches) - len(other.launches))
    command = shlex.join(["harness", "compare", *sides])
    return comparison_answer(sides, measured, rows, left_out, command)


def _in_turns(
    sides: tuple[str, ...], practical: float, budget_s: float, results: Path, options: dict[str, Any]
) -> Answer:
    from harness.regression.opponents import Opponents, checks_folder, decide
    from harness.report.compare_page import check_answer

    old, new = (_version(name, options) for name in sides)
    folder = checks_folder(results)
    opponents = Opponents(old, new, folder=folder, data_dir=options["data_dir"], budget_s=budget_s)
    result = decide(opponents, practical=practical, say=click.echo)
    answer = check_answer(result, shlex.join(["harness", "compare", *sides]))
    return replace(answer, code=0)


def _version(name: str, options: dict[str, Any]) -> "Version":
    """Return the side that `name`, a script's path or a model's ``package.module:function``, stands for."""
    from harness.regression.opponents import Version
    from harness.sweep.plan import build_sweep
    from harness.sweep.submission import Submission

    own = {"script": Path(name)} if name.endswith(".py") else {"model": name}
    workload = build_workload(options | own)
    layouts, _ = build_layouts(options | {"oversubscribe": False}, Submission())
    fetch_for(workload, options["data_dir"])
    sweep = build_sweep(workload, layouts=layouts, repeats=1, data_dir=options["data_dir"])
    return Version(name=name, sweep=sweep)


@click.command(name="history")
@common.sweep_argument
@click.option("--markdown", "summary", type=UserPath(), help="Write the result for a pull request.")
@common.all_folder_options
@common.answering
def history(sweep: str | None, results: Path, baselines: Path, **_: object) -> Answer:
    """Draw every commit's launches of one study on one machine, and name the commits at which it changed.

    The study is that of SWEEP (default: the newest sweep, else the newest baseline). Its launches come from
    all sweeps in --results and from the baselines. The last line is the page's path.
    """
    from harness.regression.baselines import measurements_of
    from harness.regression.history import history_of
    from harness.report.history_page import history_answer

    study = find_measurement(sweep, results=results, baselines=baselines)
    return history_answer(history_of(measurements_of(study, results=results, baselines=baselines)))
