"""``harness baseline`` keeps what a sweep measured."""

from pathlib import Path

import click

from harness.cli.answering import print_table
from harness.cli.common import baselines_option, results_option, sweep_argument


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

    SWEEP@COMMIT keeps those of another commit. Each layout needs 6 launches.
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
