"""`harness predict` as a page: the curve beyond the machine, and all that it rests on."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from harness.analysis import numbers
from harness.analysis.stats import Interval
from harness.prediction.growth import Grown, HeldOut, StepGrowth
from harness.prediction.model import Base, assumptions
from harness.report.answer import Banner, Fact, FigureBlock, Table, Tile
from harness.report.axes import rank_axis, time_unit
from harness.report.figures.breakdown import EPOCH
from harness.report.publish import Page, PageSummary, publish
from harness.report.render import Head
from harness.report.svg import MUTED, draw, mark

_HEADINGS = (
    "Ranks", "Step", "Computation", "Slowest rank", "Allreduce", "Epoch", "Epoch, low to high", "Speedup", "Efficiency",
)  # fmt: skip
_TIMES = ("step_s", "compute_s", "straggler_s", "allreduce_s", "epoch_s")
PART_HEADINGS = ("Part of a step", "Error", "Model, p ranks")
_LABELS = {part.column: part.label for part in EPOCH}
GROWTH_HEADINGS = ("Ranks", "Epoch by growth", "95 % band", "Speedup")
Predicted = tuple[Base, pd.DataFrame, Grown]


def write_predictions(
    found: Sequence[Predicted], network: str, command: str, reports: Path, results: Path | None = None
) -> Path:
    """Write ``REPORTS/predict/index.html`` about each base, its frame of `prediction.model` and its growth models.

    `network` says which costs were used, `command` gave the prediction. The page's path is returned.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    names = [base.workload.name.upper() for base, _, _ in found]
    head = _head(names, found, network, command)
    tables = [table for name, one in zip(names, found, strict=True) for table in _tables(name, one)]
    grown = [_growth_figure(name, one) for name, one in zip(names, found, strict=True) if one[2].frame is not None]
    figures = (_figure(names, found), *grown)
    summary = PageSummary(kind="predict", title=", ".join(names), answer=head.answer, when=datetime.now(UTC))
    values = {
        "banners": (Banner(kind="warning", text="Nothing here was measured but what the predictions rest on."),),
        "tables": tables, "figures": figures, "lines": (), "lines_title": "", "tones_of": {},
    }  # fmt: skip
    page = Page(place="predict", template="tables.html.j2", summary=summary, head=head, values=values, figures=figures)
    return publish(page, reports, results)


def _head(names: Sequence[str], found: Sequence[Predicted], network: str, command: str) -> Head:
    most = int(max(frame["ranks"].max() for _, frame, _ in found))
    best = []
    for name, (_, frame, _) in zip(names, found, strict=True):
        top = frame.sort_values("speedup").iloc[-1]
        best.append(f"{name}: {top['speedup']:.1f} at {int(top['ranks']):,} ranks")
    return Head(
        question=f"How would {', '.join(names)} scale to {most:,} ranks?",
        answer=f"Predicted, not measured: largest speedups: {'; '.join(best)}.",
        tiles=tuple(_tile(name, frame) for name, (_, frame, _) in zip(names, found, strict=True)),
        facts=(
            Fact(name="Network", value=network),
            Fact(name="Base", value="; ".join(base.source for base, _, _ in found)),
        ),
        command=command,
    )


def _tables(name: str, one: Predicted) -> list[Table]:
    base, frame, by_growth = one
    note = " ".join(assumptions(base, frame["ranks"]))
    if by_growth.frame is None:
        note += f" No growth models: {by_growth.growth.refused}."
    rows = tuple(_row(row) for _, row in frame.iterrows())
    tables = [Table(title=f"{name}, predicted", headings=(*_HEADINGS, ""), rows=rows, note=note)]
    if by_growth.frame is not None:
        held = held_sentence(by_growth.held) if by_growth.held else "No count can be spared to test them."
        parts = part_rows(by_growth.growth)
        note = (
            "Each part of a step has the model in the ranks with the least leave-one-out error, here as a part of a "
            "step: c0 + c1 p^i log2(p)^j, as in Extra-P. Waits and sums are of one synchronisation. " + held
        )
        tables.append(Table(title=f"{name}, growth models", headings=PART_HEADINGS, rows=parts, note=note))
        headings, rows = (*GROWTH_HEADINGS, ""), tuple((*row, "") for row in growth_rows(by_growth.frame))
        tables.append(Table(title=f"{name}, predicted by growth models", headings=headings, rows=rows))
    return tables


def part_rows(growth: StepGrowth) -> tuple[tuple[str, str, str], ...]:
    """Return each part's name, its leave-one-out error as a part of a step, and its model."""
    return tuple((_LABELS[one.part], numbers.percent(one.error, 1), one.words) for one in growth.parts)


def growth_rows(frame: pd.DataFrame) -> tuple[tuple[str, ...], ...]:
    """Return the rows of GROWTH_HEADINGS: what growth models say of each count."""
    return tuple(
        (
            f"{int(row['ranks']):,}",
            numbers.seconds(float(row["epoch_s"])),
            numbers.seconds_span(Interval(low=float(row["epoch_low_s"]), high=float(row["epoch_high_s"]))),
            numbers.significant(float(row["speedup"])),
        )
        for _, row in frame.iterrows()
    )


def held_sentence(held: HeldOut) -> str:
    """Return how the models did at the largest measured count, which they had not seen."""
    off = f"{numbers.percent(abs(held.error), 1)} too {'much' if held.error > 0 else 'little'}"
    inside = "inside" if held.covered else "outside"
    return f"From the other counts alone they say {off} for {numbers.ranks(held.ranks)}, {inside} their band."


def _tile(name: str, frame: pd.DataFrame) -> Tile:
    last = frame.iloc[-1]
    detail = (
        f"predicted speedup at {int(last['ranks']):,} ranks; efficiency {numbers.percent(float(last['efficiency']))}"
    )
    return Tile(name=name, value=numbers.significant(float(last["speedup"])), detail=detail)


def _row(row: "pd.Series[float]") -> tuple[str, ...]:
    low, high = float(row["epoch_low_s"]), float(row["epoch_high_s"])
    return (
        f"{int(row['ranks']):,}",
        *(numbers.seconds(float(row[name])) for name in _TIMES),
        f"{numbers.seconds(low)} to {numbers.seconds(high)}",
        numbers.significant(float(row["speedup"])),
        numbers.percent(float(row["efficiency"])),
        "",
    )


def _figure(names: Sequence[str], found: Sequence[Predicted]) -> FigureBlock:
    counts = sorted({int(ranks) for _, frame, _ in found for ranks in frame["ranks"]})

    def paint(axes: Axes) -> None:
        logarithmic = rank_axis(axes, counts)
        ends = [counts[0], counts[-1]]
        axes.plot(ends, [end / ends[0] for end in ends], color=MUTED.light, linestyle=(0, (5, 3)), label="ideal")
        for number, (name, (_, frame, _)) in enumerate(zip(names, found, strict=True), start=1):
            look = mark(number)
            axes.plot(frame["ranks"], frame["speedup"], color=look.colour, linestyle=look.dashes, label=name)
        if logarithmic:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel("Predicted speedup")

    table = pd.concat([frame.assign(workload=name) for name, (_, frame, _) in zip(names, found, strict=True)])
    spoken = "; ".join(
        f"{name} {frame['speedup'].iloc[-1]:.2f} at {int(frame['ranks'].iloc[-1]):,} ranks"
        for name, (_, frame, _) in zip(names, found, strict=True)
    )
    picture = draw("predicted-speedup", "Predicted speedup against ranks", paint, numbers=spoken)
    return FigureBlock(
        picture=picture, title="Predicted speedup", caption="Lines: predicted, no launch was made. Dashed: ideal.",
        table=table,
    )  # fmt: skip


def _growth_figure(name: str, one: Predicted) -> FigureBlock:
    """Draw the epoch time of both predictions beside what was measured."""
    _, frame, by_growth = one
    grown, points = by_growth.frame, by_growth.points
    assert grown is not None  # the caller's choice
    unit, label = time_unit(float(max(frame["epoch_s"].max(), points["seconds"].max())))

    def paint(axes: Axes) -> None:
        rank_axis(axes, sorted({*map(int, frame["ranks"]), *map(int, points["ranks"])}))
        low, high = grown["epoch_low_s"] * unit, grown["epoch_high_s"] * unit
        axes.fill_between(grown["ranks"], low, high, color=mark(1).colour, alpha=0.18, linewidth=0)
        for look, of, said in ((mark(1), grown, "growth models"), (mark(2), frame, "network's costs")):
            axes.plot(of["ranks"], of["epoch_s"] * unit, color=look.colour, linestyle=look.dashes, label=said)
        axes.plot(points["ranks"], points["seconds"] * unit, "o", color=MUTED.light, label="measured")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"Epoch time ({label})")

    spoken = "; ".join(f"{ranks} ranks {epoch}" for ranks, epoch, _, _ in growth_rows(grown))
    title = f"{name}: predicted epoch time"
    picture = draw(f"growth-{name.lower()}", f"{title} against ranks", paint, numbers=spoken)
    caption = (
        "Lines and band: predicted, by growth models of the measured parts (95 %) and by the network's costs. Points: "
        "medians of launches."
    )
    return FigureBlock(picture=picture, title=title, caption=caption, table=grown)
