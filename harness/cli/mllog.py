"""``harness mllog``: launches as the log that MLPerf's tools read."""

from collections.abc import Iterator
from pathlib import Path

import click

from harness.base.errors import UserError
from harness.cli.answer import Answer, answering
from harness.cli.common import reports_option, results_option
from harness.cli.select import find_sweep
from harness.schema.record import RUN_FILE, RunRecord, read_run


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
