"""The numbers of a sweep's first screen, each with its doubt."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from harness.analysis import numbers
from harness.analysis.breakdown import Cap
from harness.analysis.learning import TimeToAccuracy
from harness.analysis.scaling import Scaling, needed_launches
from harness.analysis.stats import NEEDED
from harness.report.captions import last_point, part_name, target_of
from harness.report.render import Tile
from harness.schema.record import RunRecord


def tiles(
    scaling: Scaling,
    caps: Sequence[Cap],
    final: pd.DataFrame,
    runs: Sequence[RunRecord],
    targets: Sequence[TimeToAccuracy] = (),
    goal: float | None = None,
) -> tuple[Tile, ...]:
    """Return speedup, speedup to equal accuracy, efficiency, the largest loss, accuracy and the launches behind them.

    `final` is `learning.final_frame` of the same launches; `runs` are all of them, invalid ones too. `targets` and
    `goal` as in `to_accuracy`.
    """
    speedup, *efficiency = _ratios(scaling)
    to_equal = _to_accuracy_tile(scaling, targets, goal)
    return (speedup, *to_equal, *efficiency, *_cap(caps), *_accuracy(final), _launches_tile(scaling, runs))


def _to_accuracy_tile(scaling: Scaling, targets: Sequence[TimeToAccuracy], goal: float | None) -> list[Tile]:
    found = target_of(scaling, targets)
    if found is None or goal is None:
        return []
    level = f"to {numbers.percent(goal, 1)} test accuracy"
    reached = f"reached by {found.reached} of {numbers.plural(found.launches, 'launch')}"
    if found.speedup is None:
        value, detail = "none", f"{level}, {reached}"
    else:
        value = f"{found.speedup:.2f}"
        doubt = f"95 % interval {numbers.ratio_span(found.interval)}" if found.interval else f"no interval; {reached}"
        detail = f"{level}; {doubt}"
    return [Tile(name="Speedup to equal accuracy", value=value, detail=detail)]


def _ratios(scaling: Scaling) -> list[Tile]:
    last = last_point(scaling)
    if last is None:
        base = scaling.base
        detail = f"{numbers.ranks(base.ranks)}, median of {numbers.plural(base.launches, 'launch')}"
        return [Tile(name="Epoch time", value=numbers.seconds(base.seconds), detail=detail)]
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
        return [Tile(name="Largest loss", value="none", detail="no part takes 1 % more than its ideal share")]
    detail = (
        f"{numbers.percent(last.cap.fraction)} of the epoch at {numbers.ranks(last.ranks)}; "
        f"without it the speedup would be at most about {last.cap.speedup_without:.2f}"
        + (f", 95 % interval {numbers.ratio_span(last.cap.interval)}" if last.cap.interval else "")
    )
    return [Tile(name="Largest loss", value=part_name(last.cap.part), detail=detail)]


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
