"""``harness baseline`` keeps what a sweep measured, ``harness noise`` how far launches of the same code differ."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.answering import print_table
from harness.cli.common import (
    GroupedCommand,
    baselines_option,
    budget_option,
    data_dir_option,
    results_option,
    sweep_argument,
)
from harness.cli.options import batch_options, more_launches, refuse_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.schema.measurement import Measurement


@click.group(name="baseline")
def baseline() -> None:
    """Keep, list and show baselines: files in results/baselines that a person can review and commit."""


@baseline.command(name="save")
@click.argument("name")
@sweep_argument
@click.option("--note", default="", help="One sentence for whoever reads it later.")
@click.option("--replace", is_flag=True, help="Replace a baseline of this name.")
@results_option
@baselines_option
def save(name: str, sweep: str | None, note: str, replace: bool, results: Path, baselines: Path) -> None:
    """Keep the newest commit's valid launches of SWEEP (default: the newest sweep) as baseline NAME.

    SWEEP@COMMIT keeps those of another commit. Each layout needs 6 launches; 12 judge better.
    """
    from harness.cli.select import find_measurement
    from harness.regression.baselines import save_baseline

    measurement = find_measurement(sweep, results=results, baselines=None)
    click.echo(save_baseline(measurement, name, baselines, note=note, replace_it=replace))


@baseline.command(name="list")
@baselines_option
def list_all(baselines: Path) -> None:
    """List every baseline: workload, layouts, launches, commit, machine."""
    from harness.analysis.numbers import moment
    from harness.regression.baselines import machine_line, read_baselines

    rows = []
    for kept in read_baselines(baselines):
        one = kept.measurement
        ranks = ",".join(str(layout.ranks) for layout in one.layouts)
        rows.append(
            (kept.name, one.workload.name, ranks, str(one.fewest), one.state, moment(kept.saved),
             machine_line(one.machine))
        )  # fmt: skip
    if not rows:
        click.echo(f"no baseline in '{baselines}': save one with `harness baseline save NAME`")
        return
    print_table(("Name", "Workload", "Ranks", "Launches", "Commit", "Saved (UTC)", "Machine"), rows)


@baseline.command(name="show")
@click.argument("name")
@baselines_option
def show(name: str, baselines: Path) -> None:
    """Show what baseline NAME holds: every layout's epoch time and efficiency, settings, versions."""
    from harness.analysis.numbers import moment
    from harness.regression.baselines import find_baseline, machine_line
    from harness.regression.quantities import quantity_value, samples

    kept = find_baseline(name, baselines)
    one = kept.measurement
    rows = [
        (sample.quantity, str(sample.layout.ranks) if sample.layout else "all",
         quantity_value(sample.quantity, sample.value), str(len(sample.costs)))
        for sample in samples(one, one, one.layouts)
    ]  # fmt: skip
    print_table(("Quantity", "Ranks", "Median", "Launches"), rows)
    facts = {
        "Saved": f"{moment(kept.saved)} UTC" + (f": {kept.note}" if kept.note else ""),
        "Commit": one.state,
        "Machine": machine_line(one.machine),
        "Training": f"{one.workload.name}, {one.workload.preset}, {one.scaling} scaling, {one.data_id}",
        "Versions": f"TensorFlow {one.software.tensorflow}, {one.software.mpi_library}, Python {one.software.python}",
    }
    for title, fact in facts.items():
        click.echo(f"{title}: {fact}")


@click.command(name="noise", cls=GroupedCommand)
@sweep_argument
@click.option("--launches", type=click.IntRange(min=2), help="Launch each layout so many times more now: a session.")
@budget_option
@click.option("--list", "list_all", is_flag=True, help="Show what is kept, with its age, and measure nothing.")
@batch_options
@data_dir_option
@results_option
@baselines_option
def noise(
    sweep: str | None,
    launches: int | None,
    budget: float,
    list_all: bool,
    data_dir: Path | None,
    results: Path,
    baselines: Path,
    **options: Any,
) -> None:
    """Learn the noise floor from the newest commit's launches of SWEEP (default: the newest sweep).

    They are A/A runs: the code is the same, so all that differs is noise, within a session and between sessions of
    several days. `harness check` flags nothing that noise can make. Launches that no baseline holds are added to
    results/baselines/noise, one file for each workload, machine and commit. With --launches, they are made as
    `harness sweep` makes them: by Slurm or PBS where one is.
    """
    if launches is None:
        refuse_batch("give --launches too (make noise LAUNCHES=6)")
    if list_all:
        _list_noises(baselines)
        return
    from harness.analysis.numbers import plural
    from harness.cli.select import find_measurement
    from harness.regression.baselines import find_noises, save_noise, unkept
    from harness.regression.sequential_test import measure_more

    measurement = find_measurement(sweep, results=results, baselines=None)
    if launches is not None:
        more = more_launches(measurement, options, results=results, data_dir=data_dir, budget_s=60 * budget)
        measurement = measure_more(launches, more, say=click.echo)
    fresh = unkept(measurement, baselines)
    kept = save_noise(fresh, baselines) if fresh.launches else None
    _show_noise(measurement, [one.measurement for one in find_noises(measurement, baselines)])
    if kept is None:
        click.echo(
            f"nothing added: all of these {plural(len(measurement.launches), 'launch')} are already stored "
            "here or in a baseline; `harness noise --launches 6` on another day adds a session"
        )
        return
    click.echo(f"{plural(len(fresh.launches), 'launch')} added")
    click.echo(kept)


def _show_noise(measurement: "Measurement", kept: "Sequence[Measurement]") -> None:
    from harness.analysis.numbers import percent
    from harness.analysis.stats import SESSION_SPREAD
    from harness.regression.measurements import group_by_code
    from harness.regression.noise import KNOWN, detectable_slowdowns

    state, *others = group_by_code([measurement, *kept])
    found = detectable_slowdowns(state, others)
    rows = [
        (
            row.quantity,
            str(row.layout.ranks) if row.layout else "all",
            str(row.launches),
            str(row.sessions),
            percent(row.noise.deviation, 1),
            f"{row.noise.inflation:.2f}",
            percent(row.noise.between, 1) + (" assumed" if row.noise.assumed else ""),
            percent(row.floor, 1),
            *(str(needed) if needed else "none" for needed in row.launches_for.values()),
        )
        for row in found
    ]
    headings = (
        "Quantity",
        "Ranks",
        "Launches",
        "Sessions",
        "Standard deviation",
        "Variance factor",
        "Between sessions",
    )
    print_table((*headings, "Noise of 6 launches", "To see 5 %", "To see 10 %"), rows)
    click.echo(
        f"{measurement.workload.name}, commit {measurement.state}. The standard deviations are of one launch, and "
        "between sessions. Variance factor: by what drift from launch to launch multiplies the variance of a mean, "
        "1.00 is none. "
        "Noise of 6 launches: the slowdown that noise alone makes of 6 launches of a new session in fewer than 1 of "
        "100 checks. To see 5 %: the launches of a new session that show such a slowdown, none where no number does."
    )
    if any(row.noise.assumed for row in found):
        click.echo(
            f"Between sessions {percent(SESSION_SPREAD)} is assumed until {KNOWN + 1} sessions of a commit are known."
        )


def _list_noises(baselines: Path) -> None:
    from datetime import UTC, datetime

    from harness.regression.baselines import age_words, machine_line, read_noises

    rows = []
    for kept in read_noises(baselines):
        one = kept.measurement
        counts = (one.workload.name, str(one.fewest), one.state, age_words(kept, datetime.now(UTC)))
        rows.append((*counts, machine_line(one.machine)))
    if not rows:
        click.echo(f"no A/A launches in '{baselines}': run `harness noise` after a sweep with 6 or more repeats")
        return
    print_table(("Workload", "Launches", "Commit", "Age", "Machine"), rows)
