"""Paper B's charts of ImageNet speedups, redrawn from the published numbers, and beside them what was measured here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.analysis import units
from harness.analysis.scaling import Scaling, scale
from harness.base.own_matplotlib import Axes
from harness.claims.claim_evidence import ClaimEvidence
from harness.claims.claim_match import compare_with_claim, is_about
from harness.report import rank_axes, svg
from harness.report.answer import Cell, Element, PageFigure, Prose, Table
from harness.schema.claim import Claim, Published
from harness.schema.record import RunRecord
from harness.schema.workload import IMAGE_NETWORKS

UNITS = ("CPUs", "GPUs")
_HARDWARE = {"CPUs": "cores", "GPUs": "GPUs"}
TITLES = tuple(dict.fromkeys(network.title for network in IMAGE_NETWORKS.values()))
_CLAIM_COLUMNS = ("figure", "experiment", "units", "base", "count", "quantity", "value", "kind", "erratum")
OTHER_PAPER = "B"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageNetChart:
    """One kind of unit: the published chart, ours where there are sweeps, and a row of facts for each of our points."""

    units: str
    published: PageFigure
    ours: PageFigure | None
    rows: tuple[dict[str, Any], ...]

    @property
    def hardware(self) -> str:
        """What the ranks were on here."""
        return _HARDWARE[self.units]


def imagenet_elements(published: Published, evidence: Sequence[ClaimEvidence]) -> list[Element]:
    """Return both charts with their tables, for the page of claims."""
    elements: list[Element] = [
        Prose(
            text="From “User-transparent Distributed TensorFlow” (arXiv 1704.04560), not from the paper above. Ours "
            "are, of each network, the sweep that comes closest to the paper, made by make sweep DATASET=imagenet "
            "MODEL=resnet50 NODES=1..2 and the like: another machine, other batches, and where the table says so "
            "another image size."
        )
    ]
    for chart in imagenet_charts(published.of(OTHER_PAPER), evidence):
        nothing = f"Nothing: the results folder has no ImageNet sweep of two rank counts on {chart.hardware}."
        elements.append(chart.published)
        elements.append(chart.ours or Prose(lead=f"Measured here, {chart.hardware}.", text=nothing, note=False))
        if chart.rows:
            elements.append(_throughput_table(chart))
    return elements


def _throughput_table(chart: ImageNetChart) -> Table:
    rows = []
    for row in chart.rows:
        interval = ""
        if row["low"] is not None:
            interval = f"{units.significant(row['low'])} to {units.significant(row['high'])}"
        conditions = (str(row[column]) for column in ("image_size", "global_batch", "precision", "images"))
        rows.append(
            (
                row["network"],
                str(row["ranks"]),
                Cell(text=units.significant(row["images_per_second"]), note=interval),
                str(row["launches"]),
                f"{row['speedup']:.2f}" if row["speedup"] else units.NONE,
                *conditions,
            )
        )
    return Table(
        title=f"ImageNet throughput on {chart.hardware}",
        headings=(
            "Network",
            "Ranks",
            "Images/s",
            "Launches",
            "Speedup",
            "Image size",
            "Global batch",
            "Precision",
            "Images",
        ),
        rows=rows,
        texts=(-2, -1),
        note="Images/s with its 95 % interval, of its session only, where there are six launches or more.",
    )


def imagenet_charts(claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> tuple[ImageNetChart, ...]:
    """Return both charts: `claims` of paper B, and of each network the sweep in `evidence` that comes closest to it."""
    return tuple(_chart(unit_name, claims, evidence) for unit_name in UNITS)


def _chart(unit_name: str, every_claim: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> ImageNetChart:
    claims = [claim for claim in every_claim if claim.units == unit_name]
    scalings: dict[str, Scaling] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for title in TITLES:
        sweep = _closest(title, claims, evidence)
        scaling = scale(sweep.launches) if sweep else None
        if sweep and scaling:
            scalings[title] = scaling
            rows[title] = _rows(title, scaling, sweep.runs[0])
    curves = {title: scaling for title, scaling in scalings.items() if len(scaling.points) > 1}
    drawn_rows = [row for title in curves for row in rows[title]]
    return ImageNetChart(
        units=unit_name,
        published=_published_figure(unit_name, claims),
        ours=_our_figure(unit_name, curves, drawn_rows) if curves else None,
        rows=tuple(row for of_network in rows.values() for row in of_network),
    )


def _published_figure(unit_name: str, claims: Sequence[Claim]) -> PageFigure:
    stated = [claim for claim in claims if claim.value is not None]
    series: dict[str, list[tuple[int, float]]] = {}
    for claim in stated:
        series.setdefault(claim.experiment, [(claim.base, 1.0)]).append((claim.count, claim.value or 0.0))
    reading = max((claim.reading for claim in stated), default=0.0)
    return _networks_figure(
        f"imagenet-published-{unit_name.lower()}",
        f"Published ImageNet speedups on {unit_name}",
        series,
        axis=unit_name,
        title=f"Published, {unit_name}",
        caption=f"ImageNet speedups over one of the {unit_name} as paper B's chart shows them, read off within "
        f"{reading:g}. It gives no spread, no absolute times and no "
        "batch sizes. Dashed: ideal.",
        table=pd.DataFrame(map(_columns, stated)),
    )


def _columns(claim: Claim) -> dict[str, object]:
    return {column: getattr(claim, column) for column in _CLAIM_COLUMNS}


def _our_figure(unit_name: str, curves: Mapping[str, Scaling], rows: Sequence[dict[str, Any]]) -> PageFigure:
    hardware = _HARDWARE[unit_name]
    bases = ", ".join(f"{title} {units.ranks(scaling.base.ranks)}" for title, scaling in curves.items())
    return _networks_figure(
        f"imagenet-ours-{unit_name.lower()}",
        f"ImageNet speedups measured here, {hardware}",
        {title: _speedups(scaling) for title, scaling in curves.items()},
        axis=hardware,
        title=f"Measured here, {hardware}",
        caption=f"Speedups of one ImageNet sweep of each network, over its own base ({bases}); one rank on each of the "
        f"{hardware}. Medians over launches; image sizes, batches and intervals are in the table. Dashed: ideal.",
        table=pd.DataFrame(rows),
    )


def _speedups(scaling: Scaling) -> list[tuple[int, float]]:
    """Return rank counts and speedups, the base's with 1."""
    compared = [point for point in scaling.points if point.speedup or point is scaling.base]
    return [(point.ranks, point.speedup or 1.0) for point in compared]


def _closest(title: str, claims: Sequence[Claim], evidence: Sequence[ClaimEvidence]) -> ClaimEvidence | None:
    """Return the sweep of a network that differs least from its first claim, the newest of equals."""
    claim = next((claim for claim in claims if claim.experiment == title), None)
    if claim is None:
        return None

    def distance(sweep: ClaimEvidence) -> tuple[int, int]:
        return len(compare_with_claim(claim, sweep).refusals), -len(sweep.counts)

    return min((sweep for sweep in evidence if is_about(claim, sweep)), key=distance, default=None)


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
    name: str,
    shows: str,
    series: Mapping[str, Sequence[tuple[int, float]]],
    *,
    axis: str,
    title: str,
    caption: str,
    table: pd.DataFrame,
) -> PageFigure:
    """Return a figure of the speedups of each network, called `name`; `axis` is what its ranks were on."""

    def paint(axes: Axes) -> None:
        counts = [count for points in series.values() for count, _ in points]
        logarithmic = rank_axes.rank_axis(axes, counts, axis)
        least = min(counts)
        axes.plot([least, max(counts)], [1, max(counts) / least], label="ideal", **svg.IDEAL)
        for network, points in series.items():
            look = svg.mark(TITLES.index(network))
            axes.plot(
                [count for count, _ in points],
                [speedup for _, speedup in points],
                color=look.colour,
                marker=look.marker,
                linestyle=look.dashes,
                label=network,
            )
        over = axis.removesuffix("s") if least == 1 else axis
        rank_axes.speedup_axis(axes, f"Speedup over {least} {over}", logarithmic=logarithmic)

    return PageFigure(picture=svg.draw(name, shows, paint), title=title, caption=caption, table=table)
