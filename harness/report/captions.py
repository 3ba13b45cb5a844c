"""What must stand beside every figure (base, seconds, scaling, batch, repeats, interval), and a sweep's verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.analysis import numbers
from harness.analysis.breakdown import Cap
from harness.analysis.scaling import PointScaling, Scaling, needed_launches
from harness.analysis.stats import NEEDED
from harness.schema.record import RunRecord
from harness.schema.workload import Workload

PART_NAMES = {
    "compute_seconds": "computation that grew",
    "input_seconds": "input",
    "skew_seconds": "waiting for the slowest rank",
    "wire_seconds": "the allreduce itself",
}


def subject(workload: Workload) -> str:
    """Return the workload's name as papers print it: ``MNIST-DNN``."""
    return workload.name.upper()


def headline(scaling: Scaling, workload: Workload) -> str:
    """Return the report's first sentence: the largest point against the base, with its doubt."""
    base, name = scaling.base, subject(workload)
    compared = [point for point in scaling.others if point.speedup is not None]
    if not compared:
        only = f"{numbers.ranks(base.ranks)} {_verb(base.ranks, 'train')} an epoch of {name}"
        return f"{only} in {numbers.seconds(base.seconds)}; {_one_point(scaling)}."
    last = compared[-1]
    assert last.speedup is not None and last.efficiency is not None
    efficiency = f"efficiency {numbers.percent(last.efficiency)}"
    if scaling.scaling == "weak":
        work = f"{last.ideal:g} times the rows of {numbers.ranks(base.ranks)}"
        fact = f"{numbers.ranks(last.ranks)} {_verb(last.ranks, 'train')} {name} on {work} at {last.speedup:.2f} times"
        return f"{fact} the rate ({efficiency}), {_certainty(last, base)}."
    fact = f"{numbers.ranks(last.ranks)} {_verb(last.ranks, 'train')} {name} {last.speedup:.2f} times as fast as"
    return f"{fact} {numbers.ranks(base.ranks)} ({efficiency}), {_certainty(last, base)}."


def speedup_label(scaling: Scaling) -> str:
    """Return what the ratio is called under this kind of scaling."""
    return "Speedup" if scaling.scaling == "strong" else "Scaled speedup"


def conditions(scaling: Scaling, runs: Sequence[RunRecord], *, bars: bool = True) -> str:
    """Return the sentences that every figure's caption ends with; `bars` if it draws intervals."""
    valid = [run for run in runs if not run.invalid]
    base = scaling.base
    per_rank = [rank.batch for run in valid for rank in run.ranks]
    batches = [run.global_batch for run in valid]
    rows = f"{scaling.scaling.capitalize()} scaling, {_rows(scaling)}"
    return (
        f"{rows}; batch {numbers.span(min(per_rank), max(per_rank), 'rows')} per rank, "
        f"{numbers.span(min(batches), max(batches))} global. "
        f"Base: {numbers.ranks(base.ranks)}, {numbers.seconds(base.seconds)} per epoch. {_reductions(valid)}"
        f"{repeats(scaling) if bars else f'{_launches(scaling)}, no interval drawn.'}"
    )


def _reductions(runs: Sequence[RunRecord]) -> str:
    """Return how the ranks of each point summed where that differs between points, else an empty text."""
    found: dict[str, set[int]] = {}
    for run in runs:
        if run.point.layout.ranks > 1:
            found.setdefault(run.provenance.reduction, set()).add(run.point.layout.ranks)
    if len(found) < 2:
        return ""
    parts = [f"{name} on {', '.join(map(str, sorted(ranks)))} ranks" for name, ranks in found.items()]
    return f"The points differ in how ranks sum: {'; '.join(parts)}. "


def repeats(scaling: Scaling) -> str:
    """Return how many launches stand behind each point and what the error bars are."""
    high = scaling.repeats[1]
    times = _launches(scaling)
    if high < NEEDED:
        return f"{times}: too few for an interval (it needs {NEEDED}), every launch is drawn."
    if needed_launches(scaling):
        return f"{times}; 95 % interval of the median only where there are {NEEDED} or more."
    apart = any(point.apart for point in scaling.points)
    return f"{times}; bars: 95 % interval" + (", no ratio's at points of another sitting." if apart else ".")


def drawn(layouts: int, most: int) -> str:
    """Return the sentence that not all of `layouts` are drawn, empty where they are at most `most`."""
    return f"{most} of {numbers.count(layouts)} layouts are drawn, all are in the CSV. " if layouts > most else ""


def method(scaling: Scaling) -> str:
    """Return how a time, a ratio and an interval are computed."""
    work = "its epoch time" if scaling.scaling == "strong" else "its epoch time, times the ratio of the ranks"
    return (
        "A launch's time is the median over its epochs of the slowest rank's training time, without evaluation. "
        "A point's time is the median over its launches. Speedup is the base's median over the point's median of "
        f"{work}; ratios are never averaged. The 95 % interval of a time is exact (binomial order statistics: at "
        "least 95 %), that of a ratio a bootstrap over the launches of both points, paired by the block of the "
        f"interleaved order; both need {NEEDED} launches. Points that were launched in other sittings than the base "
        "(nothing ran for an hour between them) have no interval of a ratio. A spread is a relative standard "
        "deviation. A step's time is its epoch's over the number of steps. Outliers (Tukey's fences) are marked and "
        "counted; invalid launches count nowhere and are listed below."
    )


def _certainty(last: PointScaling, base: PointScaling) -> str:
    counts = sorted({last.launches, base.launches})
    each = "each" if len(counts) == 1 else "against"
    number = counts[0] if len(counts) == 1 else last.launches
    launches = numbers.plural(number, "launch")
    text = f"{launches} {each}" if each == "each" else f"{launches} against {base.launches}"
    if last.speedup_interval is None:
        return f"{text}: " + ("in other sittings, so no interval" if last.apart else "too few for an interval")
    return f"95 % interval {numbers.ratio_span(last.speedup_interval)}, {text}"


def _launches(scaling: Scaling) -> str:
    low, high = scaling.repeats
    return f"{numbers.span(low, high)} {'launch' if high == 1 else 'launches'} per point"


def _one_point(scaling: Scaling) -> str:
    if len(scaling.points) == 1:
        return "no other rank count has a valid launch, so there is no speedup"
    return "no other point did the same work, so there is no speedup"


def _rows(scaling: Scaling) -> str:
    if scaling.scaling == "strong":
        return f"{numbers.count(scaling.base.rows)} rows per epoch"
    return f"{numbers.count(scaling.base.rows / scaling.base.ranks)} rows per rank and epoch"


def _verb(count: int, stem: str) -> str:
    return f"{stem}s" if count == 1 else stem


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
    found = [*_ratios(scaling), *_cap(caps), *_accuracy(final), _launches_tile(scaling, runs)]
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
    if last.apart:
        missing = "no interval: launched in another sitting than the base"
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
        f"without it the speedup would be at most about {last.cap.speedup_without:.2f}"
        + (f", 95 % interval {numbers.ratio_span(last.cap.interval)}" if last.cap.interval else "")
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


def _launches_tile(scaling: Scaling, runs: Sequence[RunRecord]) -> Tile:
    valid = sum(not run.invalid for run in runs)
    low, high = scaling.repeats
    detail = f"{numbers.span(low, high)} per point"
    if len(runs) > valid:
        detail += f"; {numbers.plural(len(runs) - valid, 'launch')} invalid and excluded"
    strange = sum(point.outliers for point in scaling.points)
    if strange:
        detail += f"; {numbers.plural(strange, 'outlier')}, counted and marked"
    return Tile(name="Valid launches", value=numbers.count(valid), detail=detail)
