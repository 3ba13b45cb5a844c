"""A launch for other tools: ``harness trace``, a picture of time for a browser, and ``harness mllog``, MLPerf's log."""

from collections.abc import Iterator
from pathlib import Path

import click

from harness.base.errors import UserError
from harness.cli.answer import answering
from harness.cli.common import reports_option, results_option
from harness.cli.select import find_recorded, find_sweep
from harness.report.answer import Answer
from harness.schema.record import RUN_FILE, RunRecord, read_run


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
    the most ranks is taken. Open the file in ui.perfetto.dev.
    """
    from harness.analysis.calls import read_calls
    from harness.analysis.frames import launch_frame, middle_launch
    from harness.analysis.numbers import plural as counted
    from harness.analysis.read_results import load_sweep
    from harness.analysis.trace import trace_events, trace_file
    from harness.base.files import write_atomic
    from harness.schema.layout import parse_counts
    from harness.schema.record import RUN_FILE, read_run

    folder = find_recorded(name, results)
    if not (folder / RUN_FILE).exists():
        loaded = load_sweep(folder)
        if not loaded.valid:
            raise UserError(f"sweep '{folder}' has no valid launch: name a launch's folder, or sweep again")
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
        sentence=f"{', '.join(counts)}, {len(content) / 1e3:,.0f} kB: drop it on ui.perfetto.dev.{calls}",
        page=path,
    )


@click.command()
@click.argument("name", metavar="LAUNCH|SWEEP", required=False)
@click.option("--organisation", default="unnamed", show_default=True, help="Who submits.")
@click.option("--platform", default="", help="Name of the system [default: nodes and processor].")
@click.option("--target", type=click.FloatRange(0, 1), help="Test accuracy that ends training [default: all epochs].")
@results_option
@reports_option
@answering
def mllog(
    name: str | None, organisation: str, platform: str, target: float | None, results: Path, reports: Path
) -> Answer:
    """Write LAUNCH, or every valid launch of SWEEP, as ``:::MLLOG`` lines to REPORTS/mllog/SWEEP/LAUNCH.txt.

    The lines are those of the training rules' open division. mlcommons' checker takes them for workloads that are
    MLPerf's (imagenet-resnet50, rules up to 4.0.0); of all others it says that it does not know the benchmark.
    """
    from harness.base.files import write_atomic
    from harness.report.mllog import Submitter
    from harness.report.mllog import mllog as lines_of

    by = Submitter(organisation=organisation, platform=platform, target=target)
    written = []
    for folder, run in _runs(name, results):
        path = reports / "mllog" / folder.resolve().parent.name / f"{folder.resolve().name}.txt"
        write_atomic(path, lines_of(run, by))
        click.echo(path)
        written.append(path)
    return Answer(sentence=f"{len(written)} logs written.", data={"logs": written})


def _runs(name: str | None, results: Path) -> Iterator[tuple[Path, RunRecord]]:
    """Yield the launch that `name` is, or the valid ones of a sweep, with their folders."""
    if name and (Path(name) / RUN_FILE).exists():
        yield Path(name), read_run(Path(name))
        return
    sweep = find_sweep(name, results)
    valid = []
    for path in sorted(sweep.glob(f"*/{RUN_FILE}")):
        try:
            run = read_run(path.parent)
        except UserError as error:
            click.echo(f"left out: {error}", err=True)
            continue
        if not run.invalid:
            valid.append((path.parent, run))
    if not valid:
        raise UserError(f"'{sweep}' has no valid launch to write down: run `harness sweep` first")
    yield from valid
