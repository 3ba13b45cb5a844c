"""`harness predict` as a page: the curve beyond the machine, and all that it rests on."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from harness.analysis import numbers
from harness.prediction.model import Base, assumptions
from harness.report.axes import rank_axis
from harness.report.publish import Page, Summary, publish
from harness.report.render import Banner, Fact, FigureBlock, Head, Table, Tile
from harness.report.svg import MUTED, draw, mark

_HEADINGS = (
    "Ranks", "Step", "Computation", "Slowest rank", "Allreduce", "Epoch", "Epoch, low to high", "Speedup", "Efficiency",
)  # fmt: skip
_TIMES = ("step_s", "compute_s", "straggler_s", "allreduce_s", "epoch_s")
Predicted = tuple[Base, pd.DataFrame]


def write_predictions(
    found: Sequence[Predicted], network: str, command: str, reports: Path, results: Path | None = None
) -> Path:
    """Write ``REPORTS/predict/index.html`` about each base with its frame of `prediction.model`; return its path.

    `network` says which costs were used, `command` gave the prediction.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    names = [base.workload.name.upper() for base, _ in found]
    most = int(max(frame["ranks"].max() for _, frame in found))
    best = []
    for name, (_, frame) in zip(names, found, strict=True):
        top = frame.sort_values("speedup").iloc[-1]
        best.append(f"{name}: {top['speedup']:.1f} at {int(top['ranks']):,} ranks")
    head = Head(
        question=f"How would {', '.join(names)} scale to {most:,} ranks?",
        answer=f"Predicted, not measured: largest speedups: {'; '.join(best)}.",
        tiles=tuple(_tile(name, frame) for name, (_, frame) in zip(names, found, strict=True)),
        facts=(
            Fact(name="Network", value=network),
            Fact(name="Base", value="; ".join(base.source for base, _ in found)),
        ),
        command=command,
    )
    tables = [
        Table(
            title=f"{name}, predicted",
            headings=(*_HEADINGS, ""),
            rows=tuple(_row(row) for _, row in frame.iterrows()),
            note=" ".join(assumptions(base, frame["ranks"])),
        )
        for name, (base, frame) in zip(names, found, strict=True)
    ]
    figure = _figure(names, found)
    summary = Summary(kind="predict", title=", ".join(names), answer=head.answer, when=datetime.now(UTC))
    values = {
        "banners": (Banner(kind="warning", text="Nothing here was measured but the base and the network."),),
        "tables": tables, "figures": (figure,), "lines": (), "lines_title": "", "tones_of": {},
    }  # fmt: skip
    page = Page(
        place="predict", template="tables.html.j2", summary=summary, head=head, values=values, figures=(figure,)
    )
    return publish(page, reports, results)


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
    counts = sorted({int(ranks) for _, frame in found for ranks in frame["ranks"]})

    def paint(axes: Axes) -> None:
        logarithmic = rank_axis(axes, counts)
        ends = [counts[0], counts[-1]]
        axes.plot(ends, [end / ends[0] for end in ends], color=MUTED.light, linestyle=(0, (5, 3)), label="ideal")
        for number, (name, (_, frame)) in enumerate(zip(names, found, strict=True), start=1):
            look = mark(number)
            axes.plot(frame["ranks"], frame["speedup"], color=look.colour, linestyle=look.dashes, label=name)
        if logarithmic:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel("Predicted speedup")

    table = pd.concat([frame.assign(workload=name) for name, (_, frame) in zip(names, found, strict=True)])
    spoken = "; ".join(
        f"{name} {frame['speedup'].iloc[-1]:.2f} at {int(frame['ranks'].iloc[-1]):,} ranks"
        for name, (_, frame) in zip(names, found, strict=True)
    )
    picture = draw("predicted-speedup", "Predicted speedup against ranks", paint, numbers=spoken)
    return FigureBlock(
        picture=picture, title="Predicted speedup", caption="Lines: predicted, no launch was made. Dashed: ideal.",
        table=table,
    )  # fmt: skip
