"""`harness claims`: what our launches say about the papers' published numbers."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.common import network_option, reports_option, results_option

if TYPE_CHECKING:
    from harness.prediction.model import Uncertain
    from harness.report.claims_page import Model, Repeated


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
