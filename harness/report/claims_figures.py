"""The papers' charts redrawn from their published numbers, and the same of what was measured here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from harness.analysis import numbers
from harness.analysis.scaling import Scaling, scale
from harness.claims.evidence import ClaimEvidence, compare, is_about
from harness.report.answer import FigureBlock
from harness.report.axes import rank_axis
from harness.report.svg import MUTED, PAPER, VERMILLION, Picture, draw, mark
from harness.schema.claim import Claim
from harness.schema.record import RunRecord
from harness.schema.workload import IMAGE_NETWORKS


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
    if logarithmic:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(f"Speedup over {numbers.plural(base, claims[0].units.removesuffix('s'))}")


UNITS = ("CPUs", "GPUs")
TITLES = tuple(dict.fromkeys(network.title for network in IMAGE_NETWORKS.values()))

Series = dict[str, list[tuple[int, float]]]
"""By network: units and speedup over one unit, in ascending order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One kind of unit: the published chart, ours where there are sweeps, and a row of facts for each of our points."""

    units: str
    published: FigureBlock
    ours: FigureBlock | None
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sweep:
    title: str
    scaling: Scaling
    run: RunRecord


def imagenet_charts(claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> tuple[Chart, ...]:
    """Return both charts: `claims` of paper B, and of each network the sweep in `evidence` that comes closest to it."""
    return tuple(_chart(units, claims, _closest(units, claims, evidence)) for units in UNITS)


def _closest(units: str, claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> list[_Sweep]:
    """Return for each network the sweep that differs least from its claims, the newest of equals."""
    found = []
    for title in TITLES:
        claim = next((claim for claim in claims if (claim.experiment, claim.units) == (title, units)), None)
        own = [one for one in evidence if claim and is_about(claim, one)]
        if claim and own:
            best = min(own, key=lambda one, claim=claim: (len(compare(claim, one).refusals), -len(one.counts)))  # type: ignore[misc]
            scaling = scale(best.launches)
            assert scaling is not None
            found.append(_Sweep(title=title, scaling=scaling, run=best.runs[0]))
    return found


def _chart(units: str, claims: Sequence[Claim], sweeps: Sequence[_Sweep]) -> Chart:
    stated = [claim for claim in claims if claim.units == units and claim.value is not None]
    series: Series = {}
    for claim in stated:
        assert claim.value is not None
        series.setdefault(claim.experiment, [(claim.base, 1.0)]).append((claim.count, claim.value))
    reading = max((claim.reading for claim in stated), default=0.0)
    published = FigureBlock(
        picture=_picture(
            f"imagenet-published-{units.lower()}", f"Published ImageNet speedups on {units}", series, units
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
    return Chart(units=units, published=published, ours=ours, rows=rows)


def _ours(units: str, sweeps: Sequence[_Sweep]) -> FigureBlock | None:
    series = {
        sweep.title: [(p.ranks, p.speedup or 1.0) for p in sweep.scaling.points if p.speedup or p is sweep.scaling.base]
        for sweep in sweeps
    }
    if not series:
        return None
    what = "GPUs" if units == "GPUs" else "cores"
    bases = ", ".join(f"{s.title} {numbers.ranks(s.scaling.base.ranks)}" for s in sweeps)
    return FigureBlock(
        picture=_picture(f"imagenet-ours-{units.lower()}", f"ImageNet speedups measured here, {what}", series, what),
        title=f"Measured here, {what}",
        caption=(
            f"Speedups of one ImageNet sweep of each network, over its own base ({bases}); one rank on each of "
            f"the {what}. Medians over launches; image sizes, batches and intervals are in the table. Dashed: ideal."
        ),
        table=pd.DataFrame([row for sweep in sweeps for row in _rows(sweep)]),
    )


def _rows(sweep: _Sweep) -> list[dict[str, Any]]:
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


def _picture(name: str, title: str, series: Series, units: str) -> Picture:
    return draw(name, title, lambda axes: _paint(axes, series, units))


def _paint(axes: Axes, series: Series, units: str) -> None:
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
    if logarithmic:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(f"Speedup over {ends[0]} {units.removesuffix('s') if ends[0] == 1 else units}")
