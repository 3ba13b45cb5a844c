"""What pages say of measurements that are compared: warnings, facts, changes, and a figure of intervals."""

import textwrap
from collections.abc import Sequence

import pandas as pd

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.analysis.sessions import EFFICIENCY
from harness.base.own_matplotlib import Axes, ticker
from harness.regression.launch_comparison import ComparedRow
from harness.regression.measurement import Measurement, quantity_value
from harness.regression.session_check import SessionRow
from harness.regression.slow_node import SlowNode
from harness.report.answer import Banner, Fact, PageFigure, distinct, facts
from harness.report.run_words import days, machine_words
from harness.report.svg import BLUE, MUTED, draw
from harness.report.sweep_warnings import DISTURBED, DOUBTFUL

NOT_MEASURED = "not measured"
_LONGEST_NAME = 40  # characters, which leave most of the figure to its axes


def measurement_warnings(
    names: Sequence[str], measured: Sequence[Measurement], rows: Sequence[ComparedRow | SessionRow] = ()
) -> tuple[Banner, ...]:
    """Return what a reader must know before the numbers of `measured`, which are called `names`, and of `rows`."""
    texts: list[str] = []
    for name, measurement in zip(names, measured, strict=True):
        launches = f"{units.plural(len(measurement.launches) + measurement.excluded, 'launch')} of {name}"
        if measurement.excluded:
            texts.append(f"{measurement.excluded} of {launches} are left out: not valid, or all beside other work.")
        if measurement.met:
            texts.append(f"{measurement.met} of {launches} {DISTURBED}")
        if measurement.workload.sync == "none":
            texts.append(f"{name} ran without synchronisation: a limit of the machine, no training.")
    if any(row.quantity == EFFICIENCY and max(row.values) > DOUBTFUL for row in rows):
        texts.append(
            "Efficiency far above 100 %, more than caches explain: the launches on the fewest ranks were slowed by "
            "something else."
        )
    kinds = [measurement.data_kind for measurement in measured]
    stand_ins = [name for name, kind in zip(names, kinds, strict=True) if kind == "synthetic"]
    synthetic = f"Synthetic data ({distinct(stand_ins)}): times are comparable, accuracy says only that training works."
    return (
        *(Banner(kind="data", text=synthetic) for _ in stand_ins[:1]),
        *(Banner(kind="warning", text=text) for text in dict.fromkeys(texts)),
    )


def slow_node_words(node: SlowNode) -> str:
    """Return in a sentence which node is slow, by how much, and since when."""
    others = f"those of {units.plural(node.others, 'other node')}"
    when = "the newest session" if node.sessions == 1 else f"each of the {node.sessions} newest sessions"
    slowdown = units.percent(node.slowdown, 1)
    since = units.moment(node.since)
    return f"Node {node.name} is slow: {slowdown} less speed than {others} in {when}, since {since} UTC."


def skipped_notes(skipped: Sequence[str]) -> tuple[str, ...]:
    """Return a note on each sweep that could not be read, from the sentence that says why."""
    return tuple(f"A sweep is left out: {why}." for why in skipped)


def facts_of_two(first: Measurement, second: Measurement) -> tuple[Fact, ...]:
    """Return where, when, on which data and code two measurements were made."""
    both = (first, second)
    return facts(
        [
            ("Machine", "; ".join(dict.fromkeys(machine_words(one.machine) for one in both))),
            ("Date", days(launch.started for one in both for launch in one.launches)),
            ("Data", "; ".join(dict.fromkeys(f"{one.data_kind}, {one.data_id}" for one in both))),
            ("Commit", " against ".join(dict.fromkeys(one.state for one in both))),
            ("Accuracy", f"{final_accuracy(first)} against {final_accuracy(second)}"),
        ]
    )


def final_accuracy(measurement: Measurement) -> str:
    """Return the median test accuracy at the end over the launches with the most ranks."""
    launches = measurement.of(measurement.layouts[-1])
    accuracies = sorted(launch.test_accuracy for launch in launches if launch.test_accuracy is not None)
    if not accuracies:
        return NOT_MEASURED
    return units.percent(accuracies[len(accuracies) // 2], 2)


def software_changes(before: Measurement, after: Measurement) -> tuple[tuple[str, str, str], ...]:
    """Return name, old and new value of every version that differs, without the commit."""
    names = ("harness", "python", "tensorflow", "keras", "numpy", "mpi4py", "mpi_library")
    changes = [(name, getattr(before.software, name), getattr(after.software, name)) for name in names]
    changes.append(("reduction", ", ".join(before.reductions), ", ".join(after.reductions)))
    return tuple((name.replace("_", " "), old, new) for name, old, new in changes if old != new)


def compared_cells(row: ComparedRow, change: float, ends: tuple[float, float] | None, verdict: str) -> tuple[str, ...]:
    """Return a row of a table: quantity, ranks, both values, the `change` with its interval, launches, `verdict`."""
    return (
        row.quantity,
        str(row.layout.ranks) if row.layout else "all",
        *(quantity_value(row.quantity, value) for value in row.values),
        signed(change),
        units.NONE if ends is None else f"{100 * ends[0]:+.1f} to {signed(ends[1])}",
        f"{row.launches[1]} against {row.launches[0]}",
        verdict,
    )


def place(row: ComparedRow) -> str:
    """Return where the row was measured: ``on 2 ranks``, or over the whole curve."""
    return f"on {units.ranks(row.layout.ranks)}" if row.layout else "over the curve"


def signed(fraction: float) -> str:
    """Return a change with its sign: ``+9.1 %``."""
    return f"{100 * fraction:+.1f}\u00a0%"


def interval_figure(
    name: str, title: str, rows: Sequence[tuple[str, float, Interval | None]], scale: tuple[float, str]
) -> tuple[PageFigure, ...]:
    """Return the figure of named values with their intervals, a line for each; none without any.

    `scale` is the value of no difference (0 for fractions), and the axis's label.
    """
    if not rows:
        return ()
    zero, label = scale
    names = [textwrap.fill(text, _LONGEST_NAME) for text, *_ in rows]
    lines = sum(1 + text.count("\n") for text in names)
    ends = []
    for text, value, interval in rows:
        bounds = interval or Interval(low=value, high=value)
        ends.append((text, value, bounds.low, bounds.high))

    def paint(axes: Axes) -> None:
        axes.axvline(zero, color=MUTED.light, linewidth=1.0)
        for line, (_, value, low, high) in enumerate(ends):
            axes.plot([low, high], [line, line], color=BLUE.light, linewidth=1.4)
            axes.plot([value], [line], color=BLUE.light, marker="o", linestyle="none")
        axes.set_yticks(range(len(ends)), names)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(label)
        if zero == 0.0:
            axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{100 * value:g} %"))

    spoken = "; ".join(f"{text}: {value:.3f} ({low:.3f} to {high:.3f})" for text, value, low, high in ends)
    picture = draw(name, title, paint, (7.2, 1.2 + 0.16 * (len(rows) + lines)), numbers=spoken)
    table = pd.DataFrame(ends, columns=["what", "value", "low", "high"])
    return (PageFigure(picture=picture, title=title, caption=f"{label}. Error bars: 95 % CIs.", table=table),)
