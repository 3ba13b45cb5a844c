"""``harness trace``: what every rank of a launch did when."""

from pathlib import Path

import click

from harness.base.command_context import Context
from harness.base.current_user import UserPath
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.removal import check_output, make_place
from harness.cli.answer_output import answering
from harness.cli.common_options import context_options, parse_counts
from harness.cli.sweep_argument import find_recorded
from harness.cli.terminal import echo
from harness.report.answer import Answer, Banner
from harness.schema.record import read_run
from harness.schema.sweep_folder import LaunchFolder


@click.command(name="trace")
@click.argument("sweep", required=False, metavar="[LAUNCH|SWEEP]")
@click.option("--epochs", metavar="COUNTS", help="Epochs to draw, such as 1..3 [default: all].")
@click.option("-o", "--output", type=UserPath(), help="The file [default: REPORTS/traces/LAUNCH.json.gz].")
@context_options("results", "reports")
@answering
def trace_command(sweep: str | None, epochs: str | None, output: Path | None, context: Context) -> Answer:
    """Write what every rank of LAUNCH did when, on one clock, as a Chrome trace.

    Steps, allreduces with their wait and wire, input, evaluation, set-up and epochs; arrows lead from the last rank
    that came to an allreduce to those that waited for it. Of a SWEEP (the newest if none is named) the valid launch of
    median time on the most ranks is taken. Open the file in ui.perfetto.dev.
    """
    from harness.analysis.launch_frames import launch_frame, middle_launch
    from harness.analysis.read_results import load_sweep
    from harness.analysis.sync_calls import read_calls
    from harness.analysis.trace import trace_events, trace_file
    from harness.analysis.units import plural

    if output:
        check_output(output, "--output")
    folder = find_recorded(sweep, context.results)
    if not LaunchFolder(folder).is_recorded:
        loaded = load_sweep(folder)
        if not loaded.valid:
            raise UserError(f"sweep '{folder}' has no valid launch: name a launch's folder, or sweep again")
        folder = folder / middle_launch(launch_frame(loaded.runs, loaded.epochs))
        echo(f"harness: of {loaded.folder.name} the middle launch on most ranks: {folder.name}", err=True)
    run = read_run(folder)
    numbers = [count - 1 for count in parse_counts("epochs", epochs)] if epochs else None
    content = trace_file(run, trace_events(run, read_calls(folder, run), numbers))
    if output is None:
        make_place(context.reports, "--reports")
    path = output or context.reports / "traces" / f"{run.point.folder}.json.gz"
    write_atomic(path, content)
    counts = (plural(len(run.ranks), "rank"), plural(len(numbers or run.epochs), "epoch"))
    calls = "" if len(run.ranks) > 1 else " One rank alone makes no allreduce, which is what separates steps."
    return Answer(
        banners=[Banner(kind="warning", text=f"Its times are not valid: {reason}.") for reason in run.invalid],
        sentence=f"{', '.join(counts)}, {len(content) / 1e3:,.0f} kB: drop it on ui.perfetto.dev.{calls}",
        page=path,
    )
