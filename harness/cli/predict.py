"""``harness predict``: the curve beyond the machine, before it is measured."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import UserError
from harness.cli.answer import Answer, answering, print_table
from harness.cli.common import reports_option, results_option
from harness.schema.claim import EXPERIMENTS

if TYPE_CHECKING:
    import pandas as pd

    from harness.prediction.model import Base, Uncertain


_HEADINGS = ("Ranks", "Step", "Slowest rank", "Allreduce", "Epoch", "Low to high", "Speedup", "Efficiency")


@click.command(name="predict")
@click.option("--workload", "names", multiple=True, help="Workload, such as mnist-dnn; repeatable [default: measured].")
@click.option("--nodes", default="1..1024*2", show_default=True, help="Node counts: 1..8, 1..1024*2 or 1,2,4.")
@click.option("--ranks-per-node", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks on a node.")
@click.option("--network", required=True, help="ALPHA,BETA in seconds and seconds per byte, or a probe.json.")
@click.option("--node", help="ALPHA,BETA inside a node, with several ranks on it [default: as between nodes].")
@click.option("--algorithm", default="best", show_default=True, help="ring, rabenseifner, recursive-doubling or best.")
@click.option("--simulate", is_flag=True, help="Replay each step in SimGrid too, up to 1,024 ranks.")
@results_option
@reports_option
@click.option("--csv", "table", type=click.Path(path_type=Path), help="Write all columns to this file.")
@answering
def predict(
    names: tuple[str, ...],
    nodes: str,
    ranks_per_node: int,
    network: str,
    node: str | None,
    algorithm: str,
    simulate: bool,
    results: Path,
    reports: Path,
    table: Path | None,
) -> Answer:
    """Predict step time, epoch time and speedup of measured workloads on more nodes than there are.

    The computation of a step is taken from the sweep of each workload that has most valid launches with its preset's
    settings, on its fewest ranks; the allreduce is computed from the network. Nothing is measured but those two.
    """
    import pandas as pd

    from harness.base.files import write_atomic
    from harness.prediction.links import read_links
    from harness.prediction.model import assumptions
    from harness.report.predict_page import write_predictions
    from harness.schema.layout import parse_counts

    counts = tuple(count * ranks_per_node for count in parse_counts("NODES", nodes))
    if simulate and ranks_per_node > 1:
        raise UserError("--simulate knows one rank per node only: leave --ranks-per-node at 1")
    links, said = read_links(network, node, ranks_per_node)
    bases = _bases(names, results)
    frames = [_predict(base, counts, links, algorithm, simulate=simulate) for base in bases]
    if table:
        named = [frame.assign(workload=base.workload.name) for base, frame in zip(bases, frames, strict=True)]
        write_atomic(table, pd.concat(named).to_csv(index=False, lineterminator="\n"))
        click.echo(table)
    click.echo(f"Network: {said}; allreduce: {algorithm}.")
    sentences, ends = [], []
    for base, frame in zip(bases, frames, strict=True):
        for line in (f"{base.workload.name}: base is {base.source}.", *assumptions(base, frame["ranks"])):
            click.echo(line)
        if len(bases) > 1:
            print_table(_headings(frame), _rows(frame))
        sentences.append(_sentence(base, int(frame["ranks"].iloc[-1]), links, algorithm))
        ends.append((base.workload.name, *_rows(frame)[-1]))
    words = [word for name in names for word in ("--workload", name)] + ["--nodes", nodes, "--network", network]
    words += ["--ranks-per-node", str(ranks_per_node), "--algorithm", algorithm, *(["--node", node] if node else [])]
    command, found = shlex.join(["harness", "predict", *words]), list(zip(bases, frames, strict=True))
    return Answer(
        page=write_predictions(found, f"{said}; allreduce: {algorithm}", command, reports, results),
        sentence=f"Predicted, not measured: {'; '.join(sentences)}.",
        headings=_headings(frames[0]) if len(bases) == 1 else ("Workload", *_headings(frames[0])),
        rows=_rows(frames[0]) if len(bases) == 1 else ends,
        data={
            "network": said,
            "predicted": [
                {"workload": base.workload.name, "base": base.source, "points": frame.to_dict("records")}
                for base, frame in zip(bases, frames, strict=True)
            ],
        },
    )


def _bases(names: tuple[str, ...], results: Path) -> "list[Base]":
    """Return the base of each named workload, or of all that were measured; say which sweep each is from."""
    from harness.analysis.choice import choose
    from harness.prediction.measured_base import measured_base

    found = []
    for name in names or EXPERIMENTS:
        choice = choose(results, lambda study, name=name: study.sweep.workload.name == name)  # type: ignore[misc]
        if choice is not None:
            click.echo(choice.sentence(name))
            found.append(measured_base(choice.loaded))
        elif names:
            raise UserError(f"no valid launch of {name} in '{results}' to predict from: run `harness sweep` first")
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


def _sentence(base: "Base", ranks: int, links: "Uncertain", algorithm: str) -> str:
    from harness.analysis import numbers
    from harness.prediction.model import predict_ratio

    ratio, interval = predict_ratio(base, base.ranks, ranks, links, algorithm)
    scaled = ratio if base.scaling == "strong" else ratio * ranks / base.ranks
    span = numbers.ratio_span(interval.scaled(scaled / ratio))
    return (
        f"{base.workload.name} on {numbers.ranks(ranks)} is {numbers.significant(scaled)} times as fast as on "
        f"{numbers.ranks(base.ranks)} ({span} by the measured costs' intervals)"
    )


def _headings(frame: "pd.DataFrame") -> tuple[str, ...]:
    return (*_HEADINGS, "Simulated step") if "simulated_s" in frame else _HEADINGS


def _rows(frame: "pd.DataFrame") -> list[tuple[str, ...]]:
    from harness.analysis.numbers import count, percent, seconds, seconds_span, significant
    from harness.analysis.stats import Interval

    return [
        (
            count(row["ranks"]),
            *(seconds(row[name]) for name in ("step_s", "straggler_s", "allreduce_s", "epoch_s")),
            seconds_span(Interval(low=row["epoch_low_s"], high=row["epoch_high_s"])),
            significant(row["speedup"]),
            percent(row["efficiency"]),
            *([seconds(row["simulated_s"])] if "simulated_s" in row else []),
        )
        for row in frame.to_dict("records")
    ]
