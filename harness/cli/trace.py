"""``harness trace``: a launch as a picture of time, for a browser."""

from pathlib import Path

import click

from harness.base.errors import UserError
from harness.cli.answer import Answer, answering
from harness.cli.common import reports_option, results_option
from harness.cli.select import find_recorded


@click.command()
@click.argument("name", required=False, metavar="[LAUNCH|SWEEP]")
@click.option("--epochs", metavar="COUNTS", help="Epochs to draw, such as 1..3 [default: all].")
@click.option("--output", type=click.Path(path_type=Path), help="The file [default: REPORTS/traces/LAUNCH.json.gz].")
@results_option
@reports_option
@answering
def trace(name: str | None, epochs: str | None, output: Path | None, results: Path, reports: Path) -> Answer:
    """Write what every rank of LAUNCH did when, on one clock, as a Chrome trace.

    Steps, sums with their wait and wire, input, evaluation, set-up and epochs; arrows lead from the last rank that came
    to a sum to those that waited for it. Of a SWEEP (the newest if none is named) the valid launch of median time on
    the most ranks is taken. Open the file in ui.perfetto.dev or chrome://tracing.
    """
    from harness.analysis.calls import read_calls
    from harness.analysis.frames import launch_frame, middle_launch
    from harness.analysis.load import load_sweep
    from harness.analysis.numbers import plural as counted
    from harness.analysis.trace import trace_events, trace_file
    from harness.base.files import write_atomic
    from harness.schema.layout import parse_counts
    from harness.schema.record import RUN_FILE, read_run

    folder = find_recorded(name, results)
    if not (folder / RUN_FILE).exists():
        loaded = load_sweep(folder)
        if not loaded.valid:
            raise UserError(f"sweep '{folder}' has no valid launch: name a launch's folder, or `harness retry` it")
        folder = folder / middle_launch(launch_frame(loaded.runs, loaded.epochs))
        click.echo(f"harness: of {loaded.folder.name} the middle launch on most ranks: {folder.name}", err=True)
    run = read_run(folder)
    numbers = [count - 1 for count in parse_counts("--epochs", epochs)] if epochs else None
    content = trace_file(run, trace_events(run, read_calls(folder, run), numbers))
    path = output or reports / "traces" / f"{run.point.folder}.json.gz"
    write_atomic(path, content)
    counts = (counted(len(run.ranks), "rank"), counted(len(numbers or run.epochs), "epoch"))
    calls = "" if len(run.ranks) > 1 else " One rank alone makes no sums, which are what tells steps apart."
    return Answer(
        sentence=f"{', '.join(counts)}, {len(content) / 1e3:,.0f} kB: drop it on ui.perfetto.dev, or load it in chrome://tracing.{calls}",
        page=path,
    )
