"""Commands about the papers: their experiments repeated here, and what our launches say about their numbers."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import RunError
from harness.cli.common import data_dir_option, network_option, reports_option, results_option
from harness.schema.presets import PRESETS

if TYPE_CHECKING:
    from harness.prediction.model import Uncertain
    from harness.report.claims_page import Model, Repeated
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
    from harness.report.claims_figures import OTHER_PAPER, imagenet_charts
    from harness.report.claims_page import PAPER, write_paper
    from harness.schema.claim import CLAIMS_FILE, EXPERIMENTS, read_published
    from harness.schema.layout import parse_counts

    published = read_published(resource(CLAIMS_FILE))
    counts = parse_counts("NODES", nodes) if nodes else rank_counts(usable_cores(), published.of(PAPER))
    # All plans first: a wrong setting or a damaged file is told before anything runs.
    settings = {"preset": preset, "repeats": repeats, "epochs": epochs, "samples": samples}
    sweeps = [plan(experiment, nodes=counts, data_dir=data_dir, **settings) for experiment in EXPERIMENTS.values()]  # type: ignore[arg-type]
    repeated = []
    for number, sweep in enumerate(sweeps, start=1):
        click.echo(f"experiment {number} of {len(sweeps)}: {sweep.workload.name}")
        repeated.append(_repeat(sweep, data_dir=data_dir, results=results, reports=reports))
    charts = imagenet_charts(published.of(OTHER_PAPER), results)
    click.echo(write_paper(repeated, published, reports, preset, find_model(network, results), charts))
    failed = [entry.experiment for entry in repeated if entry.problem]
    if failed:
        raise RunError(f"launches failed in {', '.join(failed)}: the same command again runs only what failed")


def _repeat(sweep: "Sweep", *, data_dir: Path | None, results: Path, reports: Path) -> "Repeated":
    """Run and report one experiment; a failed launch does not keep the others from running."""
    from harness.report.claims_page import Repeated
    from harness.report.sweep_page import write_report
    from harness.sweep.execute import run_sweep

    folder, problem = results / sweep.name, ""
    try:
        run_sweep(sweep, data_dir=data_dir, results=results)
    except RunError as error:
        problem = str(error)
    write_report(folder, reports)
    return Repeated(experiment=sweep.workload.name, folder=folder, problem=problem)


@click.command(name="claims")
@network_option
@results_option
@reports_option
def claims(network: str | None, results: Path, reports: Path) -> None:
    """Judge every published number by the newest sweep of its workload in the results; run nothing.

    The last line is the path of the claims page.
    """
    from harness.base.files import resource
    from harness.report.claims_figures import OTHER_PAPER, imagenet_charts
    from harness.report.claims_page import write_paper
    from harness.schema.claim import CLAIMS_FILE, read_published

    published = read_published(resource(CLAIMS_FILE))
    repeated = find_repeated(results)
    model = find_model(network, results)
    ran = [entry for entry in repeated if entry.folder]
    presets = ", ".join(sorted({entry.preset for entry in ran})) or "none"
    click.echo(f"{len(ran)} of {len(repeated)} experiments have a sweep in '{results}'")
    charts = imagenet_charts(published.of(OTHER_PAPER), results)
    click.echo(write_paper(repeated, published, reports, presets, model, charts))


def find_repeated(results: Path) -> "list[Repeated]":
    """Return the newest sweep in `results` of each of the paper's experiments, in the paper's order."""
    from harness.report.claims_page import Repeated
    from harness.schema.claim import EXPERIMENTS
    from harness.schema.record import decode
    from harness.schema.sweep import STUDY_FILE, Study, sweep_folders

    newest: dict[str, Repeated] = {}
    for folder in sweep_folders(results):
        file = folder / STUDY_FILE
        workload = decode(file.read_bytes(), Study, file).sweep.workload
        newest.setdefault(workload.name, Repeated(experiment=workload.name, folder=folder, preset=workload.preset))
    names = list(EXPERIMENTS)
    return [newest.get(name, Repeated(experiment=name, folder=None, problem="never run here")) for name in names]


def find_model(network: str | None, results: Path) -> "Model | None":
    """Return what the claims page predicts with, None without a network (`find_network`)."""
    from harness.report.claims_page import Model

    found = find_network(network, results)
    return Model(network=found[0], said=found[1]) if found else None


def find_network(network: str | None, results: Path) -> "tuple[Uncertain, str] | None":
    """Return the links that predictions use, and a sentence: those given, else this machine's newest probe, or None.

    Raises:
        UserError: what was given is no network.
    """
    from harness.base.provenance import describe_machine
    from harness.prediction.links import probe_links, read_links
    from harness.probe.store import newest_probe

    if network is not None:
        return read_links(network, None, 1)
    found = newest_probe(results, describe_machine(gpus=()).fingerprint)
    return probe_links(found, 1) if found else None
