"""``harness predict``: the curve beyond the machine, before it is measured."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import UserError
from harness.cli.common import results_option
from harness.schema.claim import EXPERIMENTS

if TYPE_CHECKING:
    import pandas as pd

    from harness.prediction.model import Base, Uncertain


_WIDTH = 130
_TIMES = ("step_s", "compute_s", "straggler_s", "allreduce_s", "epoch_s")


@click.command(name="predict")
@click.option("--workload", "names", multiple=True, help="Workload, such as mnist-dnn; repeatable [default: measured].")
@click.option("--nodes", default="1..1024*2", show_default=True, help="Node counts: 1..8, 1..1024*2 or 1,2,4.")
@click.option("--ranks-per-node", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks on a node.")
@click.option("--network", required=True, help="ALPHA,BETA in seconds and seconds per byte, or a probe.json.")
@click.option("--node", help="ALPHA,BETA inside a node, with several ranks on it [default: as between nodes].")
@click.option("--algorithm", default="best", show_default=True, help="ring, rabenseifner, recursive-doubling or best.")
@click.option("--simulate", is_flag=True, help="Replay each step in SimGrid too, up to 1,024 ranks.")
@results_option
@click.option("--csv", "table", type=click.Path(path_type=Path), help="Write all columns to this file.")
def predict(
    names: tuple[str, ...],
    nodes: str,
    ranks_per_node: int,
    network: str,
    node: str | None,
    algorithm: str,
    simulate: bool,
    results: Path,
    table: Path | None,
) -> None:
    """Predict step time, epoch time and speedup of measured workloads on more nodes than there are.

    The computation of a step is taken from the newest sweep of each workload in the results, on its fewest ranks;
    the allreduce is computed from the network. Nothing here is measured but those two.
    """
    import pandas as pd

    from harness.base.files import write_atomic
    from harness.prediction.links import read_links
    from harness.schema.layout import parse_counts

    counts = tuple(count * ranks_per_node for count in parse_counts("NODES", nodes))
    if simulate and ranks_per_node > 1:
        raise UserError("--simulate knows one rank per node only: leave --ranks-per-node at 1")
    links, said = read_links(network, node, ranks_per_node)
    frames = []
    for base in _bases(names, results):
        frame = _predict(base, counts, links, algorithm, simulate=simulate)
        _print(base, frame, said, algorithm)
        frames.append(frame.assign(workload=base.workload.name))
    if table:
        write_atomic(table, pd.concat(frames).to_csv(index=False, lineterminator="\n"))
        click.echo(table)


def _bases(names: tuple[str, ...], results: Path) -> "list[Base]":
    """Return the base of each named workload, or of all that were measured."""
    from harness.prediction.measured_base import find_base

    found = []
    for name in names or EXPERIMENTS:
        try:
            found.append(find_base(results, lambda study, name=name: study.sweep.workload.name == name, name))  # type: ignore[misc]
        except UserError:
            if names:
                raise
    if not found:
        raise UserError(f"'{results}' has no valid launch to predict from: run `harness sweep` with --nodes 1 first")
    return found


def _predict(
    base: "Base", counts: tuple[int, ...], links: "Uncertain", algorithm: str, *, simulate: bool
) -> "pd.DataFrame":
    from harness.prediction.model import predict

    frame = predict(base, counts, links, algorithm)
    if simulate:
        from harness.prediction.simulate import simulated

        frame["simulated_s"] = simulated(base, frame, links.value.network, algorithm)
    return frame


def _print(base: "Base", frame: "pd.DataFrame", network: str, algorithm: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from harness.analysis import numbers
    from harness.prediction.model import assumptions

    console = Console()
    console.width = max(console.width, _WIDTH)  # a file or a pipe has no width of its own
    console.print(f"\n{base.workload.name}: predicted, not measured. Base: {base.source}.", highlight=False)
    console.print(f"Network: {network}; allreduce: {algorithm}.", highlight=False)
    for sentence in assumptions(base, frame["ranks"]):
        console.print(sentence, highlight=False)
    shown = Table(box=box.SIMPLE)
    heads = ["ranks", "step", "computation", "slowest rank", "allreduce", "epoch", "low to high", "speedup", "eff."]
    for head in heads + (["simulated step", "differs by"] if "simulated_s" in frame else []):
        shown.add_column(head, justify="right")
    for row in frame.to_dict("records"):
        cells = [f"{row['ranks']:,}", *(numbers.seconds(row[name]) for name in _TIMES)]
        cells.append(f"{numbers.seconds(row['epoch_low_s'])} to {numbers.seconds(row['epoch_high_s'])}")
        cells += [numbers.significant(row["speedup"]), numbers.percent(row["efficiency"])]
        if "simulated_s" in row:
            cells += [numbers.seconds(row["simulated_s"]), f"{100 * (row['simulated_s'] / row['step_s'] - 1):+.1f} %"]
        shown.add_row(*cells)
    console.print(shown)
