"""Single steps of one launch, all ranks on one clock: the fastest, the median and the slowest."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.analysis import numbers
from harness.analysis.calls import Calls, read_calls
from harness.analysis.frames import middle_launch
from harness.base.errors import UserError
from harness.report.answer import FigureBlock
from harness.report.axes import time_unit
from harness.report.figures import SweepView, figure
from harness.report.figures.breakdown import EPOCH
from harness.report.svg import INK, PAPER, draw
from harness.schema.record import read_run

_MOST_RANKS = 8
_PARTS = {part.column: part for part in EPOCH}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
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
        chosen = _choose(read_calls(folder, run))
    except UserError:  # a table of an older harness: all other figures do without
        return None
    if not chosen:
        return None
    ranks = len(run.ranks)
    table = pd.concat([_rows(name, call) for name, call in chosen.items()], ignore_index=True)
    shown = table[table["rank"].isin(_some(chosen["slowest"], ranks))]
    whole = "step" if run.point.workload.sync == "gradients" else "stretch between two averages"
    times = "; ".join(f"{name} {numbers.seconds(call.seconds)}" for name, call in chosen.items())
    some = f"{_MOST_RANKS} of {ranks} ranks are drawn, those that came last and first among them. "
    return FigureBlock(
        picture=draw(
            "single-steps",
            f"Single steps of {view.subject} on {numbers.ranks(ranks)}",
            lambda axes: _bars(axes, shown, chosen),
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


def _choose(epochs: tuple[Calls, ...]) -> dict[str, _Call]:
    """Return the fastest, the median and the slowest call of `epochs`; an epoch's last may be of a partial batch."""
    calls = [
        _Call(calls=one, number=number + 1, seconds=float(seconds))
        for one in epochs
        for number, seconds in enumerate(np.diff(one.exit.max(axis=1))[:-1] if one.exit.size else ())
    ]
    if len(calls) < 3 or epochs[0].entry.shape[1] < 2:
        return {}
    ordered = sorted(calls, key=lambda call: call.seconds)
    return {"fastest": ordered[0], "median": ordered[len(ordered) // 2], "slowest": ordered[-1]}


def _rows(name: str, call: _Call) -> pd.DataFrame:
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


def _some(slowest: _Call, ranks: int) -> list[int]:
    """Return the ranks to draw: all, or those evenly chosen from the last to the first to come to the slowest sum."""
    if ranks <= _MOST_RANKS:
        return list(range(ranks))
    order = np.argsort(slowest.calls.entry[slowest.number])
    return [int(order[round(place)]) for place in np.linspace(0, ranks - 1, _MOST_RANKS)]


def _bars(axes: Axes, shown: pd.DataFrame, chosen: dict[str, _Call]) -> None:
    longest = float((shown["begin_s"] + shown[list(_PARTS)].sum(axis=1)).max())
    factor, unit = time_unit(longest)
    places, names, at = list[float](), list[str](), 0.0
    for name, own in shown.groupby("which", sort=False):
        call = chosen[str(name)]
        words = f" {name}: step {int(call.calls.step[call.number]) + 1} of epoch {call.calls.epoch + 1}"
        axes.text(0, at, f"{words}, {numbers.seconds(call.seconds)}", va="center", color=INK.light, fontsize=8)
        rows = at + 1 + np.arange(len(own))
        left = own["begin_s"].to_numpy() * factor
        for column in ("input_seconds", "compute_seconds", "skew_seconds", "wire_seconds"):
            part, widths = _PARTS[column], own[column].to_numpy() * factor
            if shown[column].max() > 0:
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
