"""``harness compare`` and ``harness history``: measurements side by side, and over time."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.cli.answering import answering
from harness.cli.common import GroupedCommand, all_folder_options, budget_option, defaulted, sweep_argument
from harness.cli.options import layout_options, refuse_elsewhere, workload_options
from harness.report.answer import Answer, markdown

if TYPE_CHECKING:
    from harness.regression.opponents import Version


@click.command(name="compare", cls=GroupedCommand)
@click.argument("sweep", nargs=-1, metavar="A B [C]...")
@defaulted("--practical", type=click.FloatRange(0, 50), default=3.0, help="Difference, in %.")
@defaulted("--scheduler", default="auto", help="local: in a job of your own on a cluster.")
@budget_option
@all_folder_options
@workload_options
@layout_options
@answering
def compare(
    sweep: tuple[str, ...],
    practical: float,
    scheduler: str,
    budget: float,
    results: Path,
    baselines: Path,
    reports: Path,
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
        return _in_turns(sweep, practical / 100, 60 * budget, results, reports, options)
    return _side_by_side(sweep, practical / 100, results, baselines, reports)


def _side_by_side(sides: tuple[str, ...], practical: float, results: Path, baselines: Path, reports: Path) -> Answer:
    from harness.cli.select import find_measurement
    from harness.regression.baselines import without
    from harness.regression.checks import compare_measurements
    from harness.report.compare_page import comparison_answer
    from harness.report.publish import write_page

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
    return write_page(comparison_answer(sides, measured, rows, left_out, command), reports, results)


def _in_turns(
    sides: tuple[str, ...], practical: float, budget_s: float, results: Path, reports: Path, options: dict[str, Any]
) -> Answer:
    from harness.regression.opponents import Opponents, checks_folder, decide
    from harness.report.check_page import check_answer
    from harness.report.publish import write_page

    old, new = (_version(name, options) for name in sides)
    folder = checks_folder(results)
    opponents = Opponents(old, new, folder=folder, data_dir=options["data_dir"], budget_s=budget_s)
    result = decide(opponents, practical=practical, say=click.echo)
    answer = check_answer(result, shlex.join(["harness", "compare", *sides]))
    return write_page(replace(answer, code=0), reports, results)


def _version(name: str, options: dict[str, Any]) -> "Version":
    """Return the side that `name`, a script's path or a model's ``package.module:function``, stands for."""
    from harness.cli.options import build_layouts, build_workload
    from harness.regression.opponents import Version
    from harness.sweep.plan import build_sweep
    from harness.sweep.submission import Submission

    own = {"script": Path(name)} if name.endswith(".py") else {"model": name}
    workload = build_workload(options | own)
    layouts, _ = build_layouts(options | {"oversubscribe": False}, Submission())
    sweep = build_sweep(workload, layouts=layouts, repeats=1, data_dir=options["data_dir"])
    return Version(name=name, sweep=sweep)


@click.command(name="history")
@sweep_argument
@click.option("--markdown", "summary", type=click.Path(path_type=Path), help="Write the result for a pull request.")
@all_folder_options
@answering
def history(sweep: str | None, summary: Path | None, results: Path, baselines: Path, reports: Path) -> Answer:
    """Draw every commit's launches of one study on one machine, and name the commits at which it changed.

    The study is that of SWEEP (default: the newest sweep, else the newest baseline). Its launches come from
    all sweeps in --results and from the baselines. The last line is the page's path.
    """
    from harness.cli.select import find_measurement
    from harness.regression.baselines import measurements_of
    from harness.regression.history import history_of
    from harness.report.history_page import history_answer
    from harness.report.publish import write_page

    study = find_measurement(sweep, results=results, baselines=baselines)
    answer = history_answer(history_of(measurements_of(study, results=results, baselines=baselines)))
    if summary:
        write_atomic(summary, markdown(answer))
    return write_page(answer, reports, results)
