"""The figure of one of paper A's experiments: published speedups, measured ones, and those to equal accuracy."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.base.own_matplotlib import Axes
from harness.report import rank_axes, svg
from harness.report.answer import PageFigure
from harness.report.experiment_results import PaperExperiment, cuts, printed_speedups
from harness.schema.claim import Claim

_LOOKS = ((svg.BLUE, "o"), (svg.GREEN, "^"), (svg.ORANGE, "s"))
_APART = 0.008  # of the axis: so little that no marker seems to be of another rank count


def experiment_figure(part: PaperExperiment) -> PageFigure:
    """Return the figure of an experiment that has a speedup."""
    name = part.name.upper()
    base = next(line.sided.scaling.base for line in part.lines if line.sided.scaling)
    printed = printed_speedups(part.claims)
    paper = "The paper prints no number for this chart, so none of its points is drawn"
    if printed:
        printed_base = units.plural(printed[0].base, printed[0].units.removesuffix("s"))
        paper = (
            f"Diamonds: the paper's printed numbers over its base of {printed_base}, the dotted line only joins them"
        )
    goal = f" Open markers: to {units.percent(part.goal, 1)} test accuracy." if part.goal is not None else ""
    caption = (
        f"Speedup of {name} at equal samples (filled) over {units.ranks(base.ranks)}, "
        f"{units.seconds(base.seconds)} per epoch.{goal} {paper}. Dashed: ideal, over either base. "
        f"{'; '.join(cuts(part))}."
    )
    shows = f"Speedup of {name}: published, at equal samples and to equal accuracy"
    return PageFigure(
        picture=svg.draw(
            f"experiment-{part.name}", shows, lambda axes: _paint_experiment(axes, part, printed), (6.4, 3.9)
        ),
        title=f"{name}: speedup at equal samples and to equal accuracy",
        caption=caption,
        table=_experiment_table(part),
    )


def _experiment_table(part: PaperExperiment) -> pd.DataFrame:
    """Return the numbers of the figure: a row for each published number and for each layout of each policy."""
    rows: list[dict[str, object]] = [
        {"series": "published", "base": claim.base, "cores": claim.count, "speedup": claim.value}
        for claim in part.claims
        if claim.quantity == "speedup" and claim.value
    ]
    for line in part.lines:
        base = line.sided.scaling.base.ranks if line.sided.scaling else None
        for side in line.sided.sides:
            point, target = side.point, side.target
            row: dict[str, object] = {"series": line.sync, "base": base, "cores": side.ranks}
            row |= _with_ends("speedup", point.speedup if point else None, point.speedup_interval if point else None)
            row |= _with_ends(
                "speedup_to_accuracy", target.speedup if target else None, target.interval if target else None
            )
            rows.append(row | {"test_accuracy": side.accuracy, "launches": side.launches})
    return pd.DataFrame(rows)


def _with_ends(name: str, value: float | None, interval: Interval | None) -> dict[str, object]:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _paint_experiment(axes: Axes, part: PaperExperiment, printed: Sequence[Claim]) -> None:
    lines = [(line.sync, line.sided) for line in part.lines]
    base = next(sided.scaling.base.ranks for _, sided in lines if sided.scaling)
    counts = {side.ranks for _, sided in lines for side in sided.sides}
    counts |= {count for claim in printed for count in (claim.base, claim.count)}
    logarithmic = rank_axes.rank_axis(axes, sorted(counts), "Cores (ours: one rank on each)")
    for start in dict.fromkeys([base, *(claim.base for claim in printed)]):
        axes.plot(
            [start, max(counts)], [1, max(counts) / start], color=svg.MUTED.light, linestyle=(0, (5, 3)), linewidth=1
        )
    if printed:
        printed_counts = [printed[0].base, *(claim.count for claim in printed)]
        speedups = [1.0, *(claim.value or 1.0 for claim in printed)]
        axes.plot(
            printed_counts,
            speedups,
            color=svg.VERMILLION.light,
            marker="D",
            markersize=8,
            linestyle=":",
            label="published",
        )
        last = (printed_counts[-1], speedups[-1])
        axes.annotate(f"{speedups[-1]:g}", last, textcoords="offset points", xytext=(-8, 8), ha="right")
    for number, (sync, sided) in enumerate(lines):
        tone, marker = _LOOKS[number % len(_LOOKS)]
        shift = (number - (len(lines) - 1) / 2) * _APART
        look = {"color": tone.light, "marker": marker, "markersize": 6}
        lent = [] if any(side.ranks == base for side in sided.sides) else [(base, 1.0, None)]
        samples = [*lent, *((s.ranks, s.point.speedup, s.point.speedup_interval) for s in sided.sides if s.point)]
        accuracy = [*lent, *((s.ranks, s.target.speedup, s.target.interval) for s in sided.sides if s.target)]
        _series(axes, samples, shift, look | {"label": sync})
        _series(axes, accuracy, shift, look | {"markerfacecolor": svg.PAPER.light, "linestyle": ":"})
    if part.goal is not None:
        open_marker = {"color": svg.INK.light, "marker": "o", "markerfacecolor": svg.PAPER.light, "linestyle": ":"}
        axes.plot([], [], label=f"to {units.percent(part.goal, 1)} accuracy", **open_marker)  # type: ignore[arg-type]
    rank_axes.speedup_axis(axes, "Speedup over the series' own base", logarithmic=logarithmic)


def _series(
    axes: Axes, points: Sequence[tuple[int, float | None, Interval | None]], shift: float, look: dict[str, Any]
) -> None:
    """Draw (ranks, ratio, interval) with markers `shift` of the axis beside their ranks."""
    low, high = axes.get_xlim()
    is_logarithmic = axes.get_xscale() == "log"
    places: list[float] = []
    ratios: list[float] = []
    bars: list[tuple[float, float, Interval]] = []
    for ranks, ratio, interval in points:
        if ratio is None:
            continue
        place = ranks * (high / low) ** shift if is_logarithmic else ranks + shift * (high - low)
        places.append(place)
        ratios.append(ratio)
        if interval:
            bars.append((place, ratio, interval))
    axes.plot(places, ratios, **look)
    for bar in bars:
        rank_axes.error_bars(axes, [bar], look["color"], capsize=3)
