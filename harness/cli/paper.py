"""`harness paper`: paper A's seven experiments, repeated here."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import RunError
from harness.cli.claims import write_ledger
from harness.cli.common import data_dir_option, network_option, reports_option, results_option
from harness.schema.presets import PRESETS

if TYPE_CHECKING:
    from harness.schema.sweep import Sweep


@click.command(name="paper")
@click.option("--preset", default="default", show_default=True, help=f"Training settings: {', '.join(PRESETS)}.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Launches; 6 give intervals.")
@click.option("--epochs", type=click.IntRange(min=1), help="Epochs of every experiment, instead of its own number.")
@click.option("--samples", type=click.IntRange(min=1), help="Most training rows of every experiment.")
@click.option("--nodes", help="Rank counts: 1..8 or 1,2,4 [default: 1, doublings, all cores, the paper's counts].")
@network_option
@data_dir_option
@results_option
@reports_option
def paper(
    preset: str,
    repeats: int,
    epochs: int | None,
    samples: int | None,
    nodes: str | None,
    network: str | None,
    data_dir: Path | None,
    results: Path,
    reports: Path,
) -> None:
    """Repeat paper A's seven experiments and set its figures and claims beside ours.

    By default rows and epochs are cut so that all of it takes 10 to 15 minutes on 2 cores. The same command
    again runs only what is missing. The last line is the page's path.
    """
    from harness.base.cores import usable_cores
    from harness.base.files import resource
    from harness.claims.experiments import plan, rank_counts
    from harness.report.claims_page import PAPER
    from harness.schema.claim import CLAIMS_FILE, EXPERIMENTS, read_published
    from harness.schema.layout import parse_counts

    published = read_published(resource(CLAIMS_FILE))
    counts = parse_counts("NODES", nodes) if nodes else rank_counts(usable_cores(), published.of(PAPER))
    # All plans first: a wrong setting or a damaged file is told before anything runs.
    settings = {"preset": preset, "repeats": repeats, "epochs": epochs, "samples": samples}
    sweeps = [plan(experiment, nodes=counts, data_dir=data_dir, **settings) for experiment in EXPERIMENTS.values()]  # type: ignore[arg-type]
    failed = []
    for number, sweep in enumerate(sweeps, start=1):
        click.echo(f"experiment {number} of {len(sweeps)}: {sweep.workload.name}")
        failed += _repeat(sweep, data_dir=data_dir, results=results, reports=reports)
    click.echo(write_ledger(network, results, reports))
    if failed:
        raise RunError(f"launches failed in {', '.join(failed)}: the same command again runs only what failed")


def _repeat(sweep: "Sweep", *, data_dir: Path | None, results: Path, reports: Path) -> list[str]:
    """Run and report one experiment, return its name if a launch failed: that does not keep the others from running."""
    from harness.report.sweep_page import write_report
    from harness.sweep.execute import run_sweep

    failed = []
    try:
        run_sweep(sweep, data_dir=data_dir, results=results)
    except RunError as error:
        click.echo(f"harness: {sweep.workload.name}: {error}", err=True)
        failed.append(sweep.workload.name)
    write_report(results / sweep.name, reports)
    return failed
