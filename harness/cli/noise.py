"""``harness noise``: how far launches of the same code come apart."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.schema.measurement import Measurement


@click.command(name="noise")
@click.argument("sweep", required=False)
@click.option("--launches", type=click.IntRange(min=6), help="Measure until each layout has so many of this commit.")
@click.option("--budget", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Minutes to measure.")
@click.option("--list", "list_all", is_flag=True, help="Show what is kept, with its age, and measure nothing.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), envvar="HARNESS_DATA_DIR", help="Folder with the original files."
)
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option("--baselines", type=click.Path(path_type=Path), default=Path("results/baselines"), show_default=True)
def command(
    sweep: str | None,
    launches: int | None,
    budget: float,
    list_all: bool,
    data_dir: Path | None,
    results: Path,
    baselines: Path,
) -> None:
    """Learn the noise floor from the newest commit's launches of SWEEP (default: the newest sweep).

    They are A/A runs: the code is the same, so all that differs is noise. `harness check` flags nothing that
    noise can make. The launches are kept in results/baselines/noise, one file for each workload and machine.
    """
    if list_all:
        _list(baselines)
        return
    from harness.cli.report import newest_sweep
    from harness.regression.resolve import resolve
    from harness.regression.store import save_noise

    measurement = resolve(sweep or str(newest_sweep(results)), results=results, baselines=None)
    if launches is not None:
        from harness.regression.decide import Measuring, measure_up_to, study_of

        measuring = Measuring(study_of(measurement), results=results, data_dir=data_dir, budget_s=60 * budget)
        measurement = measure_up_to(launches, measuring, say=click.echo)
    _show(measurement)
    click.echo(save_noise(measurement, baselines))


def _show(measurement: "Measurement") -> None:
    from harness.analysis.numbers import percent
    from harness.regression.formats import console, print_table
    from harness.regression.noise import detectable_losses

    rows = [
        (
            floor.quantity,
            str(floor.layout.ranks) if floor.layout else "all",
            str(floor.launches),
            percent(floor.spread, 1),
            f"{floor.inflation:.2f}",
            percent(floor.floor, 1),
            *(str(needed) if needed else "over 100" for needed in floor.launches_for.values()),
        )
        for floor in detectable_losses(measurement)
    ]
    headings = ("Quantity", "Ranks", "Launches", "Spread", "Drift", "Floor at 6", "Launches for 5 %", "for 10 %")
    print_table(console(), headings, rows)
    click.echo(
        f"{measurement.workload.name}, commit {measurement.software.name}. Spread: one launch's standard deviation. "
        "Drift: 1 is none. Floor at 6: what noise makes of 6 launches in fewer than 1 of 100 checks."
    )


def _list(baselines: Path) -> None:
    from datetime import UTC, datetime

    from harness.regression.check_wording import age
    from harness.regression.formats import console, print_table
    from harness.regression.match import describe
    from harness.regression.store import read_noises

    rows = []
    for kept in read_noises(baselines):
        one = kept.measurement
        counts = (one.workload.name, str(one.fewest), one.software.name, age(kept, datetime.now(UTC)))
        rows.append((*counts, describe(one.machine)))
    if not rows:
        click.echo(f"no A/A launches in '{baselines}': run `harness noise` after a sweep with 6 or more repeats")
        return
    print_table(console(), ("Workload", "Launches", "Commit", "Age", "Machine"), rows)
