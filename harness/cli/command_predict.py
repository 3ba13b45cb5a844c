"""``harness predict``: the curve beyond the machine."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.command_context import Context
from harness.base.errors import UserError
from harness.cli.answer_output import answering, print_table
from harness.cli.common_options import context_options, defaulted, given_command, network_option
from harness.cli.counts import parse_counts
from harness.cli.format_options import format_options
from harness.cli.network import find_network
from harness.cli.terminal import echo
from harness.report.answer import Answer, Banner, Prose, Table
from harness.schema.claim import EXPERIMENTS

if TYPE_CHECKING:
    from harness.prediction.predicted_curve import PredictedCurve

_FAR = "1..1024*2"


@click.command(name="predict")
@click.option("--workload", "names", multiple=True, help="Workload; repeatable [default: all].")
@click.option("--nodes", help=f"Node counts: 1..8, 1..1024*2 or 1,2,4 [default: {_FAR}].")
@defaulted("--ranks-per-node", type=click.IntRange(min=1), default=1, help="Ranks on a node.")
@network_option
@click.option("--node", help="ALPHA,BETA inside a node, with several ranks on it [default: as between nodes].")
@click.option("--sync", "syncs", multiple=True, help="Sync policy, instead of the launches' own; repeatable.")
@format_options
@context_options("results", "reports")
@answering
def predict_command(names: tuple[str, ...], context: Context, **options: Any) -> Answer:
    """Predict step time, epoch time and speedup of measured workloads on more nodes than there are.

    The computation of a step is taken from the sweep of each workload that has most valid launches with its preset's
    settings, on its fewest ranks; the allreduce is computed from the network. Nothing is measured but those two.
    """
    answer = _curves(names, context.results, options)
    for block in [element for section in answer.sections for element in section.elements]:
        if isinstance(block, Prose):
            echo(block.text)
        elif isinstance(block, Table) and answer.table and block.title != answer.table.title:
            print_table(block.headings, block.rows)
    return answer


def _curves(names: tuple[str, ...], results: Path, options: dict[str, Any]) -> Answer:
    from harness.analysis.sweep_choice import choose_sweep
    from harness.prediction.predicted_curve import predict_curve
    from harness.report.predict_answer import prediction_answer
    from harness.report.sweep_warnings import sweep_warnings

    per_node = options["ranks_per_node"]
    counts = [count * per_node for count in parse_counts("NODES", options["nodes"] or _FAR)]
    network = find_network(options["network"], results, options["node"], per_node)
    if network is None:
        raise UserError("a prediction needs a network: run `harness probe` first, or give --network ALPHA,BETA")
    links, origin = network
    curves: list[PredictedCurve] = []
    banners: list[Banner] = []
    for name in names or EXPERIMENTS:
        choice = choose_sweep(results, lambda study, name=name: study.sweep.workload.name == name)  # type: ignore[misc]
        if choice is not None:
            echo(choice.sentence(name))
            syncs = options["syncs"] or ("",)
            curves += [predict_curve(choice.loaded, counts, links, sync) for sync in syncs]
            banners += sweep_warnings(choice.loaded)
        elif names:
            raise UserError(f"no valid launch of {name} in '{results}' to predict from: run `harness sweep` first")
    if not curves:
        raise UserError(f"'{results}' has no valid launch to predict from: run `harness sweep` with --nodes 1 first")
    echo(f"Network: {origin}; each allreduce by the cheapest algorithm.")
    answer = prediction_answer(curves, origin, given_command())
    return replace(answer, banners=(*answer.banners, *dict.fromkeys(banners)))
