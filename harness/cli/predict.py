"""``harness predict``: the curve beyond the machine, before it is measured."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import UserError
from harness.cli.answer import answering, print_table
from harness.cli.common import reports_option, results_option
from harness.report.answer import Answer, Table
from harness.schema.claim import EXPERIMENTS

if TYPE_CHECKING:
    import pandas as pd

    from harness.analysis.read_results import Loaded
    from harness.prediction.growth import Grown
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
    settings, on its fewest ranks; the allreduce is computed from the network. Nothing is measured but those two. Beside
    it stand growth models of each part of a step, where the sweep has 5 counts above 1 rank, with bands of 95 %.
    """
    import pandas as pd

    from harness.base.files import write_atomic
    from harness.prediction.growth import grown
    from harness.prediction.links import read_links
    from harness.report.predict_page import write_predictions
    from harness.schema.layout import parse_counts

    counts = tuple(count * ranks_per_node for count in parse_counts("NODES", nodes))
    if simulate and ranks_per_node > 1:
        raise UserError("--simulate knows one rank per node only: leave --ranks-per-node at 1")
    links, said = read_links(network, node, ranks_per_node)
    found = [
        (base, _predict(base, counts, links, algorithm, simulate=simulate), grown(loaded, base, counts))
        for loaded, base in _bases(names, results)
    ]
    if table:
        write_atomic(table, pd.concat(_columns(found)).to_csv(index=False, lineterminator="\n"))
        click.echo(table)
    click.echo(f"Network: {said}; allreduce: {algorithm}.")
    _tell(found)
    words = [word for name in names for word in ("--workload", name)] + ["--nodes", nodes, "--network", network]
    words += ["--ranks-per-node", str(ranks_per_node), "--algorithm", algorithm, *(["--node", node] if node else [])]
    command = shlex.join(["harness", "predict", *words])
    page = write_predictions(found, f"{said}; allreduce: {algorithm}", command, reports, results)
    sentences = [_sentence(base, by_growth, counts[-1], links, algorithm) for base, _, by_growth in found]
    return _answer(found, said, sentences, page)


def _bases(names: tuple[str, ...], results: Path) -> "list[tuple[Loaded, Base]]":
    """Return sweep and base of each named workload, or of all that were measured; say which sweep each is from."""
    from harness.analysis.select_sweep import choose
    from harness.prediction.measured_base import measured_base

    found = []
    for name in names or EXPERIMENTS:
        choice = choose(results, lambda study, name=name: study.sweep.workload.name == name)  # type: ignore[misc]
        if choice is not None:
            click.echo(choice.sentence(name))
            found.append((choice.loaded, measured_base(choice.loaded)))
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


def _answer(
    found: "Sequence[tuple[Base, pd.DataFrame, Grown]]", network: str, sentences: Sequence[str], page: Path
) -> Answer:
    """Return the table of the one workload, of several their last rows."""
    first = found[0][1]
    ends = [(base.workload.name, *_rows(frame)[-1]) for base, frame, _ in found]
    return Answer(
        page=page,
        sentence=f"Predicted, not measured: {'; '.join(sentences)}.",
        table=Table(
            title="",
            headings=_headings(first) if len(found) == 1 else ("Workload", *_headings(first)),
            rows=_rows(first) if len(found) == 1 else ends,
        ),
        data={"network": network, "predicted": [_told(*one) for one in found]},
    )


def _tell(found: "Sequence[tuple[Base, pd.DataFrame, Grown]]") -> None:
    """Print what each prediction rests on, and where there are several, its table."""
    from harness.prediction.model import assumptions

    for base, frame, by_growth in found:
        for line in (f"{base.workload.name}: base is {base.source}.", *assumptions(base, frame["ranks"])):
            click.echo(line)
        if len(found) > 1:
            print_table(_headings(frame), _rows(frame))
        _tell_growth(base, by_growth)


def _tell_growth(base: "Base", by_growth: "Grown") -> None:
    """Print a sweep's growth models, how they did at the largest count, and what they say; or why there are none."""
    from harness.report.predict_page import GROWTH_HEADINGS, PART_HEADINGS, growth_rows, held_sentence, part_rows

    if by_growth.frame is None:
        click.echo(f"{base.workload.name}: no growth models: {by_growth.growth.refused}.")
        return
    click.echo(f"{base.workload.name}: growth models from {', '.join(map(str, by_growth.growth.counts))} ranks:")
    print_table(PART_HEADINGS, part_rows(by_growth.growth))
    if by_growth.held:
        click.echo(held_sentence(by_growth.held))
    print_table(GROWTH_HEADINGS, growth_rows(by_growth.frame))


def _columns(found: "Sequence[tuple[Base, pd.DataFrame, Grown]]") -> "list[pd.DataFrame]":
    """Return the frames for a file, with what growth models say in columns of their own."""
    frames = []
    for base, frame, by_growth in found:
        if by_growth.frame is not None:
            own = by_growth.frame.drop(columns=["ranks", "steps"]).add_prefix("grown_")
            frame = frame.join(own)
        frames.append(frame.assign(workload=base.workload.name))
    return frames


def _told(base: "Base", frame: "pd.DataFrame", by_growth: "Grown") -> dict[str, object]:
    """Return a prediction as JSON has it."""
    growth = by_growth.growth
    parts = [{"part": one.part, "model": one.words, "error": one.error} for one in growth.parts]
    points = [] if by_growth.frame is None else by_growth.frame.to_dict("records")
    said = {"refused": growth.refused, "counts": growth.counts, "parts": parts, "points": points}
    return {
        "workload": base.workload.name,
        "base": base.source,
        "points": frame.to_dict("records"),
        "growth": {**said, "held_out": by_growth.held},
    }


def _sentence(base: "Base", by_growth: "Grown", ranks: int, links: "Uncertain", algorithm: str) -> str:
    from harness.analysis import numbers
    from harness.prediction.model import predict_ratio

    ratio, interval = predict_ratio(base, base.ranks, ranks, links, algorithm)
    scaled = ratio if base.scaling == "strong" else ratio * ranks / base.ranks
    span = numbers.ratio_span(interval.scaled(scaled / ratio))
    return (
        f"{base.workload.name} on {numbers.ranks(ranks)} is {numbers.significant(scaled)} times as fast as on "
        f"{numbers.ranks(base.ranks)} ({span} by the measured costs' intervals){_said_by_growth(by_growth)}"
    )


def _said_by_growth(by_growth: "Grown") -> str:
    from harness.analysis.numbers import significant

    if by_growth.frame is None:
        return ""
    last = by_growth.frame.iloc[-1]
    low, high = (last["speedup"] * last["epoch_s"] / last[end] for end in ("epoch_high_s", "epoch_low_s"))
    return f", by growth models {significant(last['speedup'])} ({significant(low)} to {significant(high)})"


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
