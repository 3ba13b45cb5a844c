"""``harness predict``: the curve beyond the machine, and how to run a job within a deadline or a budget."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import UserError
from harness.base.provenance import describe_machine
from harness.cli.common import answering, defaulted, folder_options, given_command, network_option, print_table
from harness.cli.options import find_sweeps, parse_counts
from harness.report.answer import Answer, Banner, Items, Prose, Table
from harness.schema.claim import EXPERIMENTS
from harness.schema.presets import distinguishing_names

if TYPE_CHECKING:
    from harness.analysis.read_results import Loaded
    from harness.prediction.advice import TrainingJob, Way
    from harness.prediction.forecast import PredictedCurve
    from harness.prediction.network_cost import Uncertain

_FAR = "1..1024*2"
_MOST_ROWS = 12  # of ways in a terminal; the page has all
_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command(name="predict")
@click.option(
    "--workload", "--sweep", "names", multiple=True, help="Workload or, for a job, sweep; repeatable [default: all]."
)
@click.option("--nodes", help=f"Node counts: 1..8, 1..1024*2 or 1,2,4 [default: {_FAR}; of a job those measured].")
@defaulted("--ranks-per-node", type=click.IntRange(min=1), default=1, help="Ranks on a node.")
@network_option
@click.option("--node", help="ALPHA,BETA inside a node, with several ranks on it [default: as between nodes].")
@click.option("--sync", "syncs", multiple=True, help="Sync policy, instead of the launches' own; repeatable.")
@defaulted("--algorithm", default="best", help="ring, rabenseifner, recursive-doubling or best.")
@click.option("--deadline", type=_POSITIVE, help="Minutes that a job may take: recommend how to run it.")
@click.option("--node-hours", type=_POSITIVE, help="Node-hours that a job may cost: recommend how to run it.")
@click.option("--epochs", type=click.IntRange(min=1), help="Length of the job [default: as most launches had].")
@click.option("--accuracy", type=click.FloatRange(0, 1), help="The job lasts until this test accuracy, not --epochs.")
@folder_options
@answering
def predict(names: tuple[str, ...], results: Path, reports: Path, **options: Any) -> Answer:
    """Predict step time, epoch time and speedup of measured workloads on more nodes than there are.

    The computation of a step is taken from the sweep of each workload that has most valid launches with its preset's
    settings, on its fewest ranks; the allreduce is computed from the network. Nothing is measured but those two. Beside
    it stand growth models of each part of a step, where the sweep has 5 counts above 1 rank, with bands of 95 %.

    With --deadline or --node-hours, recommend the rank count, batch, sync policy and wire format for a job: of all
    sweeps whose names begin with --workload (strong scaling of the same rows) the cheapest way that meets the deadline,
    or the fastest within the budget. What counts is the upper end of the interval for one more launch; --nodes adds
    node counts by growth models, --network predicts every layout with each rank on a host of that network. Without it
    the advice is stored beside the sweep's launches, and launches made afterwards score it. Exit code 1: no way meets
    the limits.
    """
    limits = any(options[name] is not None for name in ("deadline", "node_hours"))
    job = any(options[name] is not None for name in ("epochs", "accuracy"))
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"--{name.replace('_', '-')} {value} is not a number: write one such as 0.9")
    if job and not limits:
        raise UserError("--epochs and --accuracy are of a job: give --deadline MINUTES or --node-hours HOURS too")
    if limits and (not names or options["syncs"] or options["node"] or options["ranks_per_node"] > 1):
        raise UserError(
            "--deadline and --node-hours need --workload, a workload or a sweep, and no --sync, --node or "
            "--ranks-per-node"
        )
    if limits and options["network"] and options["nodes"]:
        raise UserError("of a job, --network and --nodes cannot be combined: sweep as many ranks as it has hosts")
    answer = _job(names, results, options) if limits else _curves(names, results, options)
    for block in (block for section in answer.sections for block in section.blocks):
        if isinstance(block, Prose):
            click.echo(block.text)
        elif isinstance(block, Items):
            click.echo("\n".join(map(str, block.texts)))
        elif isinstance(block, Table) and answer.table and block.title != answer.table.title:
            print_table(block.headings, block.rows)
    if limits and answer.table:
        answer = replace(answer, table=replace(answer.table, rows=answer.table.rows[:_MOST_ROWS]))
    return answer


def find_network(
    network: str | None, results: Path, node: str | None = None, ranks_per_node: int = 1
) -> "tuple[Uncertain, str] | None":
    """Return the links that predictions use, and a sentence: those given, else this machine's newest probe, or None.

    Raises:
        UserError: what was given is not a network.
    """
    from harness.prediction.network_cost import probe_links, read_links
    from harness.probe.probe_store import newest_probe

    if network is not None:
        return read_links(network, node, ranks_per_node)
    found = newest_probe(results, describe_machine(gpus=()).fingerprint)
    return probe_links(found, ranks_per_node) if found else None


def _curves(names: tuple[str, ...], results: Path, options: dict[str, Any]) -> Answer:
    from harness.analysis.read_results import choose_sweep
    from harness.prediction.forecast import predict_curve
    from harness.report.predict_page import prediction_answer
    from harness.report.sweep_facts import sweep_warnings

    per_node, algorithm = options["ranks_per_node"], options["algorithm"]
    counts = [count * per_node for count in parse_counts("NODES", options["nodes"] or _FAR)]
    network = find_network(options["network"], results, options["node"], per_node)
    if network is None:
        raise UserError("a prediction needs a network: run `harness probe` first, or give --network ALPHA,BETA")
    links, said = network
    found: list[PredictedCurve] = []
    banners: list[Banner] = []
    for name in names or EXPERIMENTS:
        choice = choose_sweep(results, lambda study, name=name: study.sweep.workload.name == name)  # type: ignore[misc]
        if choice is not None:
            click.echo(choice.sentence(name))
            syncs = options["syncs"] or ("",)
            found += [predict_curve(choice.loaded, counts, links, algorithm, sync) for sync in syncs]
            banners += sweep_warnings(choice.loaded)
        elif names:
            raise UserError(f"no valid launch of {name} in '{results}' to predict from: run `harness sweep` first")
    if not found:
        raise UserError(f"'{results}' has no valid launch to predict from: run `harness sweep` with --nodes 1 first")
    click.echo(f"Network: {said}; allreduce: {algorithm}.")
    answer = prediction_answer(found, said, algorithm, given_command())
    return replace(answer, banners=(*answer.banners, *dict.fromkeys(banners)))


def _job(names: tuple[str, ...], results: Path, options: dict[str, Any]) -> Answer:
    from harness.prediction.advice import JobLimits, TrainingJob, choose_way, scores, write_advice
    from harness.report.predict_page import asked_words, job_answer
    from harness.report.sweep_facts import sweep_warnings

    found = _same_work(names, results)
    usual = max(found, key=lambda one: len(one.valid)).valid[0].point.workload.epochs
    job = TrainingJob(epochs=options["epochs"] or usual, target=options["accuracy"])
    network = find_network(options["network"], results) if options["network"] else None
    nodes = parse_counts("NODES", options["nodes"]) if options["nodes"] else ()
    ways = _ways(found, job, nodes, network[0] if network else None)
    minutes = options["deadline"]
    limits = JobLimits(deadline_s=None if minutes is None else 60 * minutes, node_hours=options["node_hours"])
    chosen, asked = choose_way(ways, limits), asked_words(job, limits)
    asked += f" over a network with {network[1]}" if network else ""
    earlier = [(one.folder.name, score) for one in found for score in scores(one)]
    if chosen and not network:  # launches here say nothing of another network
        write_advice(chosen, job, asked)
    sweeps = {one.folder: one.study.sweep for one in found if one.study}
    answer = job_answer(ways, chosen, asked, limits, sweeps, earlier, given_command())
    return replace(answer, banners=tuple(dict.fromkeys(banner for one in found for banner in sweep_warnings(one))))


def _same_work(names: tuple[str, ...], results: Path) -> "list[Loaded]":
    """Return the sweeps of `names` that train the same rows, strong scaling; say which are left out."""
    from harness.analysis.read_results import load_sweep, standing

    def rows(loaded: "Loaded") -> tuple[str, int]:
        run = loaded.valid[0]
        return run.data.sha256, sum(rank.rows for rank in run.ranks)

    folders = dict.fromkeys(folder for name in names for folder in find_sweeps(name, results))
    loaded = [one for folder in folders if (one := load_sweep(folder)).valid and one.study]
    strong = [one for one in loaded if one.valid[0].point.scaling == "strong"]
    if not strong:
        raise UserError(f"no valid launch of {', '.join(names)} under strong scaling in '{results}': sweep first")
    first = max(strong, key=standing)
    found = [one for one in strong if rows(one) == rows(first)]
    for one in loaded:
        if one not in found:
            click.echo(f"{one.folder.name} is left out: it trains other rows than {first.folder.name}")
    return found


def _ways(
    found: "list[Loaded]", job: "TrainingJob", nodes: tuple[int, ...], network: "Uncertain | None"
) -> "list[Way]":
    from harness.prediction.advice import measured_ways, predicted_ways

    plain = [replace(one.valid[0].point.workload, epochs=1) for one in found]
    choices = sum(len({run.point.layout for run in one.valid}) + len(nodes) for one in found)
    ways: list[Way] = []
    for one, name in zip(found, distinguishing_names(plain), strict=True):
        called = name or plain[0].name
        ways += measured_ways(one, called, job, choices, network)
        if nodes:
            predicted, why = predicted_ways(one, called, job, nodes, choices)
            ways += predicted
            if why:
                click.echo(why)
    if not ways:
        raise UserError("no layout has 2 valid launches that reach the end of the job: sweep with REPEATS=6")
    return sorted(ways, key=lambda way: way.seconds)
