"""The papers' charts redrawn from their published numbers, and the same of what was measured here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from harness.analysis import numbers
from harness.analysis.learning import Sided
from harness.analysis.scaling import Scaling, scale
from harness.analysis.stats import Interval
from harness.claims.claim_evidence import ClaimEvidence, compare_with_claim, is_about
from harness.report.answer import FigureBlock
from harness.report.svg import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    VERMILLION,
    Picture,
    draw,
    error_bars,
    mark,
    rank_axis,
    speedup_axis,
)
from harness.schema.claim import Claim
from harness.schema.record import RunRecord
from harness.schema.workload import IMAGE_NETWORKS

UNITS = ("CPUs", "GPUs")
TITLES = tuple(dict.fromkeys(network.title for network in IMAGE_NETWORKS.values()))
SIZE = (6.4, 3.9)
_LOOKS = ((BLUE, "o"), (GREEN, "^"), (ORANGE, "s"))
_APART = 0.008  # of the axis: so little that no marker seems to be of another rank count

Lines = Sequence[tuple[str, Sided]]


def published_figure(claims: Sequence[Claim], name: str) -> FigureBlock | None:
    """Return the published speedups in `claims` of experiment `name` (one base), None where no number is published."""
    subject, stated = name.upper(), [one for one in claims if one.quantity == "speedup" and one.value is not None]
    if not stated:
        return None
    base = numbers.plural(stated[0].base, stated[0].units.removesuffix("s"))
    return FigureBlock(
        picture=draw(
            f"published-{name}", f"Published speedup of {subject}", lambda axes: _published(axes, stated, base)
        ),
        title="Published",
        caption=f"Published speedup of {subject} over {base}: the numbers that the paper prints, and no line where it "
        "prints none. The paper gives no absolute time, no spread, no batch size and no repeats. Dashed: ideal.",
        table=_published_table(claims),
    )


def _published_table(claims: Sequence[Claim]) -> pd.DataFrame:
    columns = ("figure", "experiment", "units", "base", "count", "quantity", "value", "kind", "erratum")
    return pd.DataFrame([{column: getattr(claim, column) for column in columns} for claim in claims])


def _ideal(axes: Axes, ends: Sequence[int], base: int) -> None:
    line = [end / base for end in ends]
    axes.plot(ends, line, color=MUTED.light, linestyle=(0, (5, 3)), linewidth=1.2, label="ideal")


def _published(axes: Axes, claims: Sequence[Claim], base: str) -> None:
    first = claims[0].base
    counts = [first, *(claim.count for claim in claims)]
    logarithmic = rank_axis(axes, counts, f"{claims[0].units.capitalize()}")
    _ideal(axes, [min(counts), max(counts)], first)
    diamond: dict[str, Any] = {"marker": "D", "color": VERMILLION.light, "markersize": 8.0}
    cross: dict[str, Any] = {"marker": "x", "color": MUTED.light, "markersize": 8}
    points = [(claim.count, claim.value or 0.0, bool(claim.erratum)) for claim in claims]
    axes.plot([first], [1], linestyle="none", markerfacecolor=PAPER.light, label="base, 1 by definition", **diamond)
    for label, wrong, look in (("published", False, diamond), ("printed wrong", True, cross)):
        own = [(count, value) for count, value, erratum in points if erratum == wrong]
        if own or not wrong:
            axes.plot([x for x, _ in own], [y for _, y in own], linestyle="none", label=label, **look)
    for count, value, _ in points:
        axes.annotate(f"{value:g}", (count, value), textcoords="offset points", xytext=(9, -3), fontsize=8.5)
    speedup_axis(axes, f"Speedup over {base}", logarithmic=logarithmic)


def experiment_picture(lines: Lines, claims: Sequence[Claim], name: str, goal: float | None) -> Picture:
    """Return the picture of experiment `name`: `lines` are policies with what ran, `claims` the paper's.

    `goal` is the test accuracy that the open markers are to, None where there is none.
    """
    printed = printed_speedups(claims)
    title = f"Speedup of {name.upper()}: published, at equal samples and to equal accuracy"
    return draw(f"experiment-{name}", title, lambda axes: _paint_experiment(axes, lines, printed, goal), SIZE)


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
            row: dict[str, object] = {"series": sync, "base": base, "cores": side.ranks}
            row |= _with_ends("speedup", point.speedup if point else None, point.speedup_interval if point else None)
            row |= _with_ends(
                "speedup_to_accuracy", target.speedup if target else None, target.interval if target else None
            )
            rows.append(row | {"test_accuracy": side.accuracy, "launches": side.launches})
    return pd.DataFrame(rows)


def _with_ends(name: str, value: float | None, interval: Interval | None) -> dict[str, object]:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _paint_experiment(axes: Axes, lines: Lines, printed: Sequence[Claim], goal: float | None) -> None:
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
    speedup_axis(axes, "Speedup over the series' own base", logarithmic=logarithmic)


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
            error_bars(axes, [(place, ratio, interval)], look["color"], capsize=3)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageNetChart:
    """One kind of unit: the published chart, ours where there are sweeps, and a row of facts for each of our points."""

    units: str
    published: FigureBlock
    ours: FigureBlock | None
    rows: tuple[dict[str, Any], ...]


def imagenet_charts(claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> tuple[ImageNetChart, ...]:
    """Return both charts: `claims` of paper B, and of each network the sweep in `evidence` that comes closest to it."""
    return tuple(_chart(units, [one for one in claims if one.units == units], evidence) for units in UNITS)


def _chart(units: str, claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> ImageNetChart:
    what = "GPUs" if units == "GPUs" else "cores"
    stated = [claim for claim in claims if claim.value is not None]
    printed: dict[str, list[tuple[int, float]]] = {}
    for claim in stated:
        printed.setdefault(claim.experiment, [(claim.base, 1.0)]).append((claim.count, claim.value or 0.0))
    published = _networks_figure(
        ("published", f"Published ImageNet speedups on {units}", f"Published, {units}"), units, units, printed,
        f"ImageNet speedups over one of the {units} as paper B's chart shows them, read off within "
        f"{max((claim.reading for claim in stated), default=0.0):g}. It gives no spread, no absolute times and no "
        "batch sizes. Dashed: ideal.",
        _published_table(stated),
    )  # fmt: skip
    found = {title: one for title in TITLES if (one := _closest(title, claims, evidence))}
    scalings = {title: scaling for title, one in found.items() if (scaling := scale(one.launches))}
    rows = {title: _rows(title, scaling, found[title].runs[0]) for title, scaling in scalings.items()}
    curves = {title: scaling for title, scaling in scalings.items() if len(scaling.points) > 1}
    bases = ", ".join(f"{title} {numbers.ranks(scaling.base.ranks)}" for title, scaling in curves.items())
    ours = _networks_figure(
        ("ours", f"ImageNet speedups measured here, {what}", f"Measured here, {what}"), units, what,
        {t: [(p.ranks, p.speedup or 1.0) for p in s.points if p.speedup or p is s.base] for t, s in curves.items()},
        f"Speedups of one ImageNet sweep of each network, over its own base ({bases}); one rank on each of the {what}. "
        "Medians over launches; image sizes, batches and intervals are in the table. Dashed: ideal.",
        pd.DataFrame([row for title in curves for row in rows[title]]),
    ) if curves else None  # fmt: skip
    every = tuple(row for its in rows.values() for row in its)
    return ImageNetChart(units=units, published=published, ours=ours, rows=every)


def _closest(title: str, claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> ClaimEvidence | None:
    """Return the sweep of a network that differs least from its first claim, the newest of equals."""
    claim = next((claim for claim in claims if claim.experiment == title), None)
    own = [one for one in evidence if claim and is_about(claim, one)]

    def distance(one: ClaimEvidence) -> tuple[int, int]:
        assert claim is not None
        return len(compare_with_claim(claim, one).refusals), -len(one.counts)

    return min(own, key=distance, default=None)


def _rows(title: str, scaling: Scaling, run: RunRecord) -> list[dict[str, Any]]:
    """Return a row for every point: images/s with its interval, and what it was measured on."""
    return [
        {
            "network": title,
            "ranks": point.ranks,
            "images_per_second": point.rows_per_second,
            "low": point.rows_interval.low if point.rows_interval else None,
            "high": point.rows_interval.high if point.rows_interval else None,
            "launches": point.launches,
            "speedup": point.speedup,
            "image_size": run.data.features[0],
            "global_batch": point.global_batch,
            "precision": run.point.workload.precision,
            "images": f"{run.data.kind}, {'in files' if run.ranks[0].step_without_input_s else 'in memory'}",
        }
        for point in scaling.points
    ]


def _networks_figure(
    named: tuple[str, str, str],
    units: str,
    axis: str,
    series: dict[str, list[tuple[int, float]]],
    caption: str,
    table: pd.DataFrame,
) -> FigureBlock:
    """Return a figure `named` by its file, what it shows, and its title: by network, units and speedup over one."""
    place, shows, title = named

    def paint(axes: Axes) -> None:
        counts = [count for points in series.values() for count, _ in points]
        logarithmic = rank_axis(axes, counts, axis)
        least = min(counts)
        _ideal(axes, [least, max(counts)], least)
        for network, points in series.items():
            look = mark(TITLES.index(network))
            x, y = [count for count, _ in points], [speedup for _, speedup in points]
            axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dashes, label=network)
        over = axis.removesuffix("s") if least == 1 else axis
        speedup_axis(axes, f"Speedup over {least} {over}", logarithmic=logarithmic)

    picture = draw(f"imagenet-{place}-{units.lower()}", shows, paint)
    return FigureBlock(picture=picture, title=title, caption=caption, table=table)
