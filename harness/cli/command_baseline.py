"""``harness baseline``: what to check against."""

import click

from harness.base.command_context import Context
from harness.cli.answer_output import print_table
from harness.cli.common_options import context_options, sweep_argument
from harness.cli.sweep_argument import find_measurement
from harness.cli.terminal import echo


@click.group(name="baseline")
def baseline_command() -> None:
    """Keep, list and show baselines: files in results/baselines that a person can review and commit."""


@baseline_command.command(name="save")
@click.argument("name")
@sweep_argument
@click.option("--note", default="", help="One sentence for whoever reads it later.")
@click.option("--replace", is_flag=True, help="Start the baseline anew.")
@click.option("--other-machine", is_flag=True, help="The machine differs and has the same role: add it all the same.")
@context_options("results", "baselines")
def save_command(name: str, sweep: str | None, note: str, replace: bool, other_machine: bool, context: Context) -> None:
    """Keep the newest commit's valid launches of SWEEP (default: the newest sweep) as baseline NAME.

    If there is a baseline NAME, they are added to it as a session: of another day, or of another node. SWEEP@COMMIT
    keeps those of another commit. Each layout needs 3 launches.
    """
    from harness.analysis.units import plural
    from harness.regression.baselines import save_baseline

    measurement = find_measurement(sweep, results=context.results, baselines=None)
    saved = save_baseline(
        measurement, name, context.baselines, note=note, replace_it=replace, other_machine=other_machine
    )
    echo(f"baseline '{name}' has {plural(saved.sessions, 'session')}")
    echo(context.baselines / f"{name}.json")


@baseline_command.command(name="list")
@context_options("baselines")
def list_baselines_command(context: Context) -> None:
    """List every baseline: workload, layouts, sessions, launches, commit, machine."""
    from harness.analysis.units import moment
    from harness.regression.baselines import machine_line, read_baselines

    rows = []
    for saved in read_baselines(context.baselines):
        measurement = saved.measurement
        ranks = ",".join(str(layout.ranks) for layout in measurement.layouts)
        fewest = str(min(len(measurement.of(layout)) for layout in measurement.layouts))
        facts = (
            ranks,
            str(saved.sessions),
            fewest,
            measurement.state,
            moment(saved.saved),
            machine_line(measurement.machine),
        )
        rows.append((saved.name, measurement.workload.name, *facts))
    if not rows:
        echo(f"no baseline in '{context.baselines}': save one with `harness baseline save NAME`")
        return
    print_table(("Name", "Workload", "Ranks", "Sessions", "Launches", "Commit", "Saved (UTC)", "Machine"), rows)


@baseline_command.command(name="show")
@click.argument("name")
@context_options("baselines")
def show_command(name: str, context: Context) -> None:
    """Show what baseline NAME holds: every layout's step time, efficiency and its factors, settings, versions."""
    from harness.analysis.units import moment
    from harness.regression.baselines import find_baseline, machine_line
    from harness.regression.measurement import quantity_value
    from harness.regression.session_samples import session_samples

    saved = find_baseline(name, context.baselines)
    measurement = saved.measurement
    rows = [
        (
            sample.quantity,
            str(sample.layout.ranks),
            quantity_value(sample.quantity, sample.value),
            str(len(sample.sessions)),
            str(sum(map(len, sample.sessions))),
        )
        for sample in session_samples(measurement, measurement.layouts)
    ]
    print_table(("Quantity", "Ranks", "Mean", "Sessions", "Blocks"), rows)
    workload = measurement.workload
    software = measurement.software
    facts = {
        "Saved": f"{moment(saved.saved)} UTC" + (f": {saved.note}" if saved.note else ""),
        "Commit": measurement.state,
        "Machine": machine_line(measurement.machine),
        "Training": f"{workload.name}, {workload.preset}, {measurement.scaling} scaling, {measurement.data_id}",
        "Versions": f"TensorFlow {software.tensorflow}, {software.mpi_library}, Python {software.python}",
    }
    for title, fact in facts.items():
        echo(f"{title}: {fact}")
