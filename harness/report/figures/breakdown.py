"""Where the time goes, as stacked bars: one epoch, a whole launch, and single steps of one launch on one clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.analysis import numbers
from harness.analysis.calls import Calls, read_calls
from harness.analysis.frames import middle_launch
from harness.analysis.time_parts import PART_NAMES
from harness.base.errors import UserError
from harness.report import captions
from harness.report.answer import FigureBlock
from harness.report.axes import some_of, time_unit
from harness.report.figures import SweepView, figure
from harness.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, SKY, VERMILLION, Tone, draw
from harness.schema.record import read_run

_MOST_BARS = 16
_MOST_RANKS = 8
_LEAST = 0.0001  # a part that takes less than this of every bar is not seen


@dataclass(frozen=True, kw_only=True, slots=True)
class BarPart:
    """One part of a bar: its column of `analysis.time_parts.breakdown_frame`, and how it looks."""

    column: str
    tone: Tone
    hatch: str = ""

    @property
    def label(self) -> str:
        """Its name in a legend."""
        return PART_NAMES[self.column]


EPOCH: tuple[BarPart, ...] = (
    BarPart(column="compute_seconds", tone=BLUE),
    BarPart(column="input_seconds", tone=SKY, hatch=".."),
    BarPart(column="skew_seconds", tone=ORANGE, hatch="\\\\"),
    BarPart(column="wire_seconds", tone=VERMILLION, hatch="//"),
)
LAUNCH: tuple[BarPart, ...] = (
    BarPart(column="import_s", tone=MUTED, hatch=".."),
    BarPart(column="load_s", tone=SKY),
    BarPart(column="distribute_s", tone=INK, hatch="xx"),
    BarPart(column="compile_s", tone=PURPLE, hatch="xx"),
    BarPart(column="trained_compute_s", tone=BLUE),
    BarPart(column="trained_input_s", tone=SKY, hatch=".."),
    BarPart(column="trained_sync_s", tone=VERMILLION, hatch="xx"),
    BarPart(column="evaluate_s", tone=GREEN, hatch="--"),
    BarPart(column="overhead_s", tone=INK),
)


@figure("time")
def epoch_breakdown(view: SweepView) -> FigureBlock:
    """Draw the parts of one epoch."""
    text = (
        f"The middle half of the launches of {view.subject}, means over ranks. Of a synchronisation call, skew is the "
        "wait for the last rank to enter it, wire the allreduce itself; input is drawing the order of rows or waiting "
        "for them; computation is the rest of the slowest rank's epoch."
    )
    return _block(view, "an epoch", EPOCH, f"Parts of one epoch of {view.subject}", text)


@figure("time")
def launch_breakdown(view: SweepView) -> FigureBlock:
    """Draw the parts of a whole launch."""
    text = (
        f"The middle half of the launches of {view.subject}: all epochs, all evaluations and what is done once, "
        "slowest rank; rest is what remains: checks before training, comparing the weights, gathering the record. Only "
        "computation and synchronisation count in a speedup."
    )
    return _block(view, "a launch", LAUNCH, f"Parts of a launch of {view.subject}", text)


def _block(view: SweepView, whole: str, parts: Sequence[BarPart], title: str, text: str) -> FigureBlock:
    shown = some_of(view.parts, _MOST_BARS).reset_index(drop=True)
    drawn = captions.drawn(len(view.parts), _MOST_BARS)
    spoken = [
        f"{view.names[str(row['layout'])]}: "
        + ", ".join(f"{part.label} {numbers.seconds(float(row[part.column]))}" for part in visible(shown, parts))
        for _, row in shown.iterrows()
    ]
    return FigureBlock(
        picture=draw(
            f"{whole.split()[1]}-breakdown",
            title,
            lambda axes: _bars(axes, shown, parts, whole, bar_labels(shown, view.names)),
            numbers="; ".join(spoken),
        ),
        title=f"Where {whole}'s time goes",
        caption=f"{text} {drawn}{captions.conditions(view.scaling, view.runs, bars=False)}",
        table=view.parts,
    )


def visible(rows: pd.DataFrame, parts: Sequence[BarPart]) -> tuple[BarPart, ...]:
    """Return the `parts` that take 0.01 % or more of some row of `rows`."""
    totals = rows[[part.column for part in parts]].sum(axis=1)
    return tuple(part for part in parts if (rows[part.column] > _LEAST * totals).any())


def _bars(axes: Axes, rows: pd.DataFrame, parts: Sequence[BarPart], whole: str, names: list[str]) -> None:
    totals = rows[[part.column for part in parts]].sum(axis=1)
    factor, unit = time_unit(float(totals.max()))
    left = pd.Series(0.0, index=rows.index)
    places = range(len(rows))
    for part in visible(rows, parts):
        widths = rows[part.column] * factor
        axes.barh(
            places, widths, left=left, height=0.62, label=part.label, color=part.tone.light, hatch=part.hatch,
            edgecolor=PAPER.light, linewidth=0.6,
        )  # fmt: skip
        left = left + widths
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"Time of {whole} ({unit})")
    axes.set_ylabel("MPI ranks" if not rows["ranks"].duplicated().any() else "")


def bar_labels(rows: pd.DataFrame, names: Mapping[str, str]) -> list[str]:
    """Return the rank counts, or the layouts' `names` where two have the same count."""
    if rows["ranks"].duplicated().any():
        return [names[str(layout)] for layout in rows["layout"]]
    return [str(ranks) for ranks in rows["ranks"]]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCall:
    """One synchronisation call and what led to it: of `calls` number `number`, `seconds` by the last rank to leave."""

    calls: Calls
    number: int
    seconds: float


@figure("time")
def single_steps(view: SweepView) -> FigureBlock | None:
    """Draw the three steps of the middle launch on most ranks."""
    folder = view.folder / middle_launch(view.launches)
    try:
        run = read_run(folder)
        chosen = _chosen_calls(read_calls(folder, run))
    except UserError:  # a table of an older harness: all other figures do without
        return None
    if not chosen:
        return None
    ranks = len(run.ranks)
    table = pd.concat([_step_rows(name, call) for name, call in chosen.items()], ignore_index=True)
    shown = table[table["rank"].isin(_some_ranks(chosen["slowest"], ranks))]
    every_step = run.point.workload.sync.partition(":")[0] in ("gradients", "powersgd")
    whole = "step" if every_step else "stretch between two averages"
    times = "; ".join(f"{name} {numbers.seconds(call.seconds)}" for name, call in chosen.items())
    some = f"{_MOST_RANKS} of {ranks} ranks are drawn, those that came last and first among them. "
    return FigureBlock(
        picture=draw(
            "single-steps",
            f"Single steps of {view.subject} on {numbers.ranks(ranks)}",
            lambda axes: _step_bars(axes, shown, chosen),
            (4.8, 1.5 + 0.19 * len(shown)),
            numbers=times,
        ),
        title=f"The fastest, the median and the slowest {whole}",
        caption=(
            f"Of launch {run.point.folder}, the middle one on {numbers.ranks(ranks)}, without each epoch's first and "
            f"last; every bar is a rank, from when it left the sum before to when it left this one. Length of the "
            f"{whole}, by the last rank to leave: {times}. {some if ranks > _MOST_RANKS else ''}"
            f"All steps: harness trace {run.point.folder}."
        ),
        table=table,
    )


def _chosen_calls(epochs: tuple[Calls, ...]) -> dict[str, StepCall]:
    """Return the fastest, the median and the slowest call of `epochs`; an epoch's last may be of a partial batch."""
    calls = [
        StepCall(calls=one, number=number + 1, seconds=float(seconds))
        for one in epochs
        for number, seconds in enumerate(np.diff(one.exit.max(axis=1))[:-1] if one.exit.size else ())
    ]
    if len(calls) < 3 or epochs[0].entry.shape[1] < 2:
        return {}
    ordered = sorted(calls, key=lambda call: call.seconds)
    return {"fastest": ordered[0], "median": ordered[len(ordered) // 2], "slowest": ordered[-1]}


def _step_rows(name: str, call: StepCall) -> pd.DataFrame:
    """Return a row per rank: when it began and the parts of its step, seconds since the first rank began."""
    calls, number = call.calls, call.number
    left = calls.exit[number - 1]
    waited = np.minimum(calls.input[number], calls.entry[number] - left)
    return pd.DataFrame(
        {
            "which": name,
            "epoch": calls.epoch + 1,
            "step": int(calls.step[number]) + 1,
            "rank": np.arange(len(left)),
            "begin_s": left - left.min(),
            "input_seconds": waited,
            "compute_seconds": calls.entry[number] - left - waited,
            "skew_seconds": calls.skew[number],
            "wire_seconds": calls.wire[number],
        }
    )


def _some_ranks(slowest: StepCall, ranks: int) -> list[int]:
    """Return the ranks to draw: all, or those evenly chosen from the last to the first to come to the slowest sum."""
    if ranks <= _MOST_RANKS:
        return list(range(ranks))
    order = np.argsort(slowest.calls.entry[slowest.number])
    return [int(order[round(place)]) for place in np.linspace(0, ranks - 1, _MOST_RANKS)]


def _step_bars(axes: Axes, shown: pd.DataFrame, chosen: dict[str, StepCall]) -> None:
    columns = [part.column for part in EPOCH]
    factor, unit = time_unit(float((shown["begin_s"] + shown[columns].sum(axis=1)).max()))
    places, names, at = list[float](), list[str](), 0.0
    for name, own in shown.groupby("which", sort=False):
        call = chosen[str(name)]
        words = f" {name}: step {int(call.calls.step[call.number]) + 1} of epoch {call.calls.epoch + 1}"
        axes.text(0, at, f"{words}, {numbers.seconds(call.seconds)}", va="center", color=INK.light, fontsize=8)
        rows = at + 1 + np.arange(len(own))
        left = own["begin_s"].to_numpy() * factor
        for part in (EPOCH[1], EPOCH[0], *EPOCH[2:]):  # a step waits for its rows first
            widths = own[part.column].to_numpy() * factor
            if shown[part.column].max() > 0:
                axes.barh(
                    rows, widths, left=left, height=0.7, label=part.label if at == 0 else None, color=part.tone.light,
                    hatch=part.hatch, edgecolor=PAPER.light, linewidth=0.4,
                )  # fmt: skip
            left = left + widths
        places += rows.tolist()
        names += [f"rank {rank}" for rank in own["rank"]]
        at += len(own) + 1.4
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(at - 0.6, -0.7)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"Time ({unit})")
