"""One experiment in one picture: the paper's printed numbers, each policy at equal samples and to equal accuracy."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from harness.analysis import numbers
from harness.analysis.learning import Sided
from harness.analysis.stats import Interval
from harness.report.axes import rank_axis
from harness.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, VERMILLION, Picture, draw
from harness.schema.claim import Claim

SIZE = (6.4, 3.9)
_LOOKS = ((BLUE, "o"), (GREEN, "^"), (ORANGE, "s"))
_APART = 0.008  # of the axis: so little that no marker seems to be of another rank count

Lines = Sequence[tuple[str, Sided]]


def experiment_picture(lines: Lines, claims: Sequence[Claim], name: str, goal: float | None) -> Picture:
    """Return the picture of experiment `name`: `lines` are policies with what ran, `claims` the paper's.

    `goal` is the test accuracy that the open markers are to, None where there is none.
    """
    printed = printed_speedups(claims)
    title = f"Speedup of {name.upper()}: published, at equal samples and to equal accuracy"
    return draw(f"experiment-{name}", title, lambda axes: _paint(axes, lines, printed, goal), SIZE)


def printed_speedups(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Return the speedups that the paper prints and that can be right."""
    return tuple(claim for claim in claims if claim.quantity == "speedup" and claim.value and not claim.erratum)


def experiment_table(lines: Lines, claims: Sequence[Claim]) -> pd.DataFrame:
    """Return the numbers behind it: a row for each published number and for each layout of each policy."""
    rows: list[dict[str, object]] = [
        {"series": "published", "base": claim.base, "cores": claim.count, "speedup": claim.value}
        for claim in claims
        if claim.quantity == "speedup" and claim.value
    ]
    for sync, sided in lines:
        base = sided.scaling.base.ranks if sided.scaling else None
        for side in sided.sides:
            point, target = side.point, side.target
            rows.append(
                {
                    "series": sync,
                    "base": base,
                    "cores": side.ranks,
                    "speedup": point.speedup if point else None,
                    **_ends("speedup", point.speedup_interval if point else None),
                    "speedup_to_accuracy": target.speedup if target else None,
                    **_ends("speedup_to_accuracy", target.interval if target else None),
                    "test_accuracy": side.accuracy,
                    "launches": side.launches,
                }
            )
    return pd.DataFrame(rows)


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    ends = (interval.low, interval.high) if interval else (None, None)
    return dict(zip((f"{name}_low", f"{name}_high"), ends, strict=True))


def _paint(axes: Axes, lines: Lines, printed: Sequence[Claim], goal: float | None) -> None:
    base = next(sided.scaling.base.ranks for _, sided in lines if sided.scaling)
    counts = {side.ranks for _, sided in lines for side in sided.sides}
    counts |= {count for claim in printed for count in (claim.base, claim.count)}
    logarithmic = rank_axis(axes, sorted(counts), "Cores (ours: one rank on each)")
    for start in dict.fromkeys([base, *(claim.base for claim in printed)]):
        axes.plot([start, max(counts)], [1, max(counts) / start], color=MUTED.light, linestyle=(0, (5, 3)), linewidth=1)
    if printed:
        x, y = [printed[0].base, *(c.count for c in printed)], [1.0, *(c.value or 1.0 for c in printed)]
        axes.plot(x, y, color=VERMILLION.light, marker="D", markersize=8, linestyle=":", label="published")
        axes.annotate(f"{y[-1]:g}", (x[-1], y[-1]), textcoords="offset points", xytext=(-8, 8), ha="right")
    for number, (sync, sided) in enumerate(lines):
        tone, marker = _LOOKS[number % len(_LOOKS)]
        shift = (number - (len(lines) - 1) / 2) * _APART
        look = {"color": tone.light, "marker": marker, "markersize": 6}
        lent = [] if any(side.ranks == base for side in sided.sides) else [(base, 1.0, None)]
        samples = [*lent, *((s.ranks, s.point.speedup, s.point.speedup_interval) for s in sided.sides if s.point)]
        accuracy = [*lent, *((s.ranks, s.target.speedup, s.target.interval) for s in sided.sides if s.target)]
        _series(axes, samples, shift, look | {"label": sync})
        _series(axes, accuracy, shift, look | {"markerfacecolor": PAPER.light, "linestyle": ":"})
    if goal is not None:
        open_marker = {"color": INK.light, "marker": "o", "markerfacecolor": PAPER.light, "linestyle": ":"}
        axes.plot([], [], label=f"to {numbers.percent(goal, 1)} accuracy", **open_marker)  # type: ignore[arg-type]
    if logarithmic:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel("Speedup over the series' own base")


def _series(
    axes: Axes, points: Sequence[tuple[int, float | None, Interval | None]], shift: float, look: dict[str, Any]
) -> None:
    """Draw (ranks, ratio, interval) with markers `shift` of the axis beside their ranks."""
    known = [(ranks, ratio, interval) for ranks, ratio, interval in points if ratio is not None]
    low, high = axes.get_xlim()
    places = [r * (high / low) ** shift if axes.get_xscale() == "log" else r + shift * (high - low) for r, *_ in known]
    axes.plot(places, [ratio for _, ratio, _ in known], **look)
    for place, (_, ratio, interval) in zip(places, known, strict=True):
        if interval:
            # A bootstrap interval may end short of the value by rounding: an error bar cannot be negative.
            lengths = [[max(0.0, ratio - interval.low)], [max(0.0, interval.high - ratio)]]
            axes.errorbar(place, ratio, yerr=lengths, fmt="none", ecolor=look["color"], capsize=3)
