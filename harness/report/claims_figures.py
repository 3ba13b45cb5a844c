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
from harness.report.axes import rank_axis
from harness.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, VERMILLION, Picture, draw, mark
from harness.schema.claim import Claim
from harness.schema.record import RunRecord
from harness.schema.workload import IMAGE_NETWORKS

UNITS = ("CPUs", "GPUs")
TITLES = tuple(dict.fromkeys(network.title for network in IMAGE_NETWORKS.values()))
SIZE = (6.4, 3.9)
_LOOKS = ((BLUE, "o"), (GREEN, "^"), (ORANGE, "s"))
_APART = 0.008  # of the axis: so little that no marker seems to be of another rank count

Lines = Sequence[tuple[str, Sided]]


def published_picture(claims: Sequence[Claim], name: str, subject: str) -> Picture | None:
    """Return the published speedups in `claims` (one experiment, one base), None where no number is published."""
    stated = [claim for claim in claims if claim.quantity == "speedup" and claim.value is not None]
    if not stated:
        return None
    return draw(name, f"Published speedup of {subject}", lambda axes: _published(axes, stated))


def published_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """Return the numbers behind a published figure, one row per claim."""
    columns = ("figure", "experiment", "units", "base", "count", "quantity", "value", "kind", "erratum")
    return pd.DataFrame([{column: getattr(claim, column) for column in columns} for claim in claims])


def _speedup_axis(axes: Axes, label: str, *, logarithmic: bool) -> None:
    if logarithmic:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(label)


def _published(axes: Axes, claims: Sequence[Claim]) -> None:
    base = claims[0].base
    counts = [base, *(claim.count for claim in claims)]
    logarithmic = rank_axis(axes, counts, f"{claims[0].units.capitalize()}")
    ends = [min(counts), max(counts)]
    axes.plot(
        ends, [end / base for end in ends], color=MUTED.light, linestyle=(0, (5, 3)), linewidth=1.2, label="ideal"
    )
    style = {"linestyle": "none", "color": VERMILLION.light, "markersize": 8.0}
    axes.plot([base], [1], marker="D", markerfacecolor=PAPER.light, label="base, 1 by definition", **style)  # type: ignore[arg-type]
    good = [(claim.count, claim.value) for claim in claims if claim.value is not None and not claim.erratum]
    axes.plot([x for x, _ in good], [y for _, y in good], marker="D", label="published", **style)  # type: ignore[arg-type]
    wrong = [(claim.count, claim.value) for claim in claims if claim.value is not None and claim.erratum]
    if wrong:
        axes.plot(
            [x for x, _ in wrong], [y for _, y in wrong],
            linestyle="none", marker="x", markersize=8, color=MUTED.light, label="erratum",
        )  # fmt: skip
    for claim in claims:
        assert claim.value is not None
        axes.annotate(
            f"{claim.value:g}", (claim.count, claim.value), textcoords="offset points", xytext=(9, -3), fontsize=8.5
        )
    _speedup_axis(
        axes, f"Speedup over {numbers.plural(base, claims[0].units.removesuffix('s'))}", logarithmic=logarithmic
    )


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
    _speedup_axis(axes, "Speedup over the series' own base", logarithmic=logarithmic)


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


Series = dict[str, list[tuple[int, float]]]
"""By network: units and speedup over one unit, in ascending order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageNetChart:
    """One kind of unit: the published chart, ours where there are sweeps, and a row of facts for each of our points."""

    units: str
    published: FigureBlock
    ours: FigureBlock | None
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _NetworkSweep:
    title: str
    scaling: Scaling
    run: RunRecord


def imagenet_charts(claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> tuple[ImageNetChart, ...]:
    """Return both charts: `claims` of paper B, and of each network the sweep in `evidence` that comes closest to it."""
    return tuple(_chart(units, claims, _closest(units, claims, evidence)) for units in UNITS)


def _closest(units: str, claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> list[_NetworkSweep]:
    """Return for each network the sweep that differs least from its claims, the newest of equals."""
    found = []
    for title in TITLES:
        for claim in [claim for claim in claims if (claim.experiment, claim.units) == (title, units)][:1]:
            own = [
                (len(compare_with_claim(claim, one).refusals), -len(one.counts), number)
                for number, one in enumerate(evidence)
                if is_about(claim, one)
            ]
            if own:
                best = evidence[min(own)[-1]]
                scaling = scale(best.launches)
                assert scaling is not None
                found.append(_NetworkSweep(title=title, scaling=scaling, run=best.runs[0]))
    return found


def _chart(units: str, claims: Sequence[Claim], sweeps: Sequence[_NetworkSweep]) -> ImageNetChart:
    stated = [claim for claim in claims if claim.units == units and claim.value is not None]
    series: Series = {}
    for claim in stated:
        assert claim.value is not None
        series.setdefault(claim.experiment, [(claim.base, 1.0)]).append((claim.count, claim.value))
    reading = max((claim.reading for claim in stated), default=0.0)
    published = FigureBlock(
        picture=draw(
            f"imagenet-published-{units.lower()}",
            f"Published ImageNet speedups on {units}",
            lambda axes: _paint_networks(axes, series, units),
        ),
        title=f"Published, {units}",
        caption=(
            f"ImageNet speedups over one of the {units} as paper B's chart shows them, read off within "
            f"{reading:g}. It gives no spread, no absolute times and no batch sizes. Dashed: ideal."
        ),
        table=published_table(stated),
    )
    ours = _ours(units, [sweep for sweep in sweeps if len(sweep.scaling.points) > 1])
    rows = tuple(row for sweep in sweeps for row in _rows(sweep))
    return ImageNetChart(units=units, published=published, ours=ours, rows=rows)


def _ours(units: str, sweeps: Sequence[_NetworkSweep]) -> FigureBlock | None:
    series = {
        sweep.title: [(p.ranks, p.speedup or 1.0) for p in sweep.scaling.points if p.speedup or p is sweep.scaling.base]
        for sweep in sweeps
    }
    if not series:
        return None
    what = "GPUs" if units == "GPUs" else "cores"
    bases = ", ".join(f"{s.title} {numbers.ranks(s.scaling.base.ranks)}" for s in sweeps)
    return FigureBlock(
        picture=draw(
            f"imagenet-ours-{units.lower()}",
            f"ImageNet speedups measured here, {what}",
            lambda axes: _paint_networks(axes, series, what),
        ),
        title=f"Measured here, {what}",
        caption=(
            f"Speedups of one ImageNet sweep of each network, over its own base ({bases}); one rank on each of "
            f"the {what}. Medians over launches; image sizes, batches and intervals are in the table. Dashed: ideal."
        ),
        table=pd.DataFrame([row for sweep in sweeps for row in _rows(sweep)]),
    )


def _rows(sweep: _NetworkSweep) -> list[dict[str, Any]]:
    """Return a row for every point: images/s with its interval, and what it was measured on."""
    run, workload = sweep.run, sweep.run.point.workload
    return [
        {
            "network": sweep.title,
            "ranks": point.ranks,
            "images_per_second": point.rows_per_second,
            "low": point.rows_interval.low if point.rows_interval else None,
            "high": point.rows_interval.high if point.rows_interval else None,
            "launches": point.launches,
            "speedup": point.speedup,
            "image_size": run.data.features[0],
            "global_batch": point.global_batch,
            "precision": workload.precision,
            "images": f"{run.data.kind}, {'in files' if run.ranks[0].step_without_input_s else 'in memory'}",
        }
        for point in sweep.scaling.points
    ]


def _paint_networks(axes: Axes, series: Series, units: str) -> None:
    counts = [count for points in series.values() for count, _ in points]
    logarithmic = rank_axis(axes, counts, units)
    ends = [min(counts), max(counts)]
    axes.plot(
        ends, [end / ends[0] for end in ends], color=MUTED.light, linestyle=(0, (5, 3)), linewidth=1.2, label="ideal"
    )
    for network, points in series.items():
        look = mark(TITLES.index(network))
        x, y = [count for count, _ in points], [speedup for _, speedup in points]
        axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dashes, label=network)
    _speedup_axis(
        axes, f"Speedup over {ends[0]} {units.removesuffix('s') if ends[0] == 1 else units}", logarithmic=logarithmic
    )
