"""The verdict of a sweep as a reader wants it first: a few numbers, each with its doubt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.analysis import numbers
from harness.analysis.breakdown import Cap
from harness.analysis.scaling import Scaling, needed_launches
from harness.analysis.stats import NEEDED
from harness.schema.record import RunRecord

PART_NAMES = {
    "compute_seconds": "computation that grew",
    "input_seconds": "input",
    "skew_seconds": "waiting for the slowest rank",
    "wire_seconds": "the allreduce itself",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One number of the verdict: what it is, the value, and what to know about it."""

    name: str
    value: str
    detail: str


def tiles(scaling: Scaling, caps: Sequence[Cap], final: pd.DataFrame, runs: Sequence[RunRecord]) -> tuple[Tile, ...]:
    """Return speedup, efficiency, what caps it, accuracy and the launches behind them.

    `final` is `learning.final_frame` of the same launches; `runs` are all of them, invalid ones too.
    """
    found = [*_ratios(scaling), *_cap(caps), *_accuracy(final), _launches(scaling, runs)]
    return tuple(found)


def part_name(part: str) -> str:
    """Return what a column of the time split is called in a sentence."""
    return PART_NAMES.get(part, part.removesuffix("_seconds").removesuffix("_s"))


def _ratios(scaling: Scaling) -> list[Tile]:
    compared = [point for point in scaling.others if point.speedup is not None]
    if not compared:
        base = scaling.base
        detail = f"{numbers.ranks(base.ranks)}, per epoch"
        return [Tile(name="Time", value=numbers.seconds(base.seconds), detail=detail)]
    last = compared[-1]
    assert last.speedup is not None and last.efficiency is not None
    missing = f"no interval: {needed_launches(scaling)} launches short of {NEEDED}"
    doubt = "95 % interval "
    return [
        Tile(
            name="Speedup" if scaling.scaling == "strong" else "Scaled speedup",
            value=f"{last.speedup:.2f}",
            detail=f"{numbers.ranks(last.ranks)} over {numbers.ranks(scaling.base.ranks)}; "
            + (doubt + numbers.ratio_span(last.speedup_interval) if last.speedup_interval else missing),
        ),
        Tile(
            name="Efficiency",
            value=numbers.percent(last.efficiency),
            detail=doubt + numbers.percent_span(last.efficiency_interval) if last.efficiency_interval else missing,
        ),
    ]


def _cap(caps: Sequence[Cap]) -> list[Tile]:
    if not caps:
        return []
    last = caps[-1]
    if last.cap is None:
        return [Tile(name="Capped by", value="nothing", detail="no part takes 1 % more than its ideal share")]
    detail = (
        f"{numbers.percent(last.cap.fraction)} of the epoch at {numbers.ranks(last.ranks)}; "
        f"without it the speedup would be {last.cap.speedup_without:.2f}"
    )
    return [Tile(name="Capped by", value=part_name(last.cap.part), detail=detail)]


def _accuracy(final: pd.DataFrame) -> list[Tile]:
    known = final[final["test_accuracy"].notna()]
    if known.empty:
        return []
    rows: list[dict[str, Any]] = known.to_dict("records")  # type: ignore[assignment]
    last, first = rows[-1], rows[0]
    detail = f"{numbers.ranks(int(last['ranks']))}, after {numbers.plural(int(last['epochs']), 'epoch')}"
    if len(rows) > 1:
        detail += f"; {numbers.ranks(int(first['ranks']))}: {numbers.percent(first['test_accuracy'], 2)}"
    return [Tile(name="Test accuracy", value=numbers.percent(last["test_accuracy"], 2), detail=detail)]


def _launches(scaling: Scaling, runs: Sequence[RunRecord]) -> Tile:
    valid = sum(not run.invalid for run in runs)
    low, high = scaling.repeats
    detail = f"{numbers.span(low, high)} per point"
    if len(runs) > valid:
        detail += f"; {numbers.plural(len(runs) - valid, 'launch')} invalid and excluded"
    strange = sum(point.outliers for point in scaling.points)
    if strange:
        detail += f"; {numbers.plural(strange, 'outlier')}, counted and marked"
    return Tile(name="Valid launches", value=numbers.count(valid), detail=detail)
