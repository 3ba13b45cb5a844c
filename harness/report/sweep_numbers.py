"""The numbers of a sweep's page: its first screen, each number with its doubt, and what its tables show."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pandas as pd

from harness.analysis import numbers
from harness.analysis.learning import (
    TimeToAccuracy,
    default_accuracy,
    final_frame,
    speedups_to_accuracy,
    times_to_accuracy,
)
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import Scaling, needed_launches, reference_points
from harness.analysis.stats import NEEDED
from harness.base.files import resource
from harness.prediction.forecast import read_prediction, score
from harness.report import captions
from harness.report.answer import Tile
from harness.report.captions import last_point, target_of
from harness.report.figures import SweepView
from harness.report.figures.breakdown import EPOCH, LAUNCH, visible
from harness.report.launch_summary import run_facts
from harness.report.methods import bibtex, methods
from harness.report.render import Head
from harness.schema.claim import CLAIMS_FILE, Claim, read_published
from harness.schema.record import RunRecord
from harness.schema.workload import Workload
from harness.why.overheads import PARTS, PointOverheads, overheads


def numbers_of(loaded: Loaded, view: SweepView) -> dict[str, Any]:
    """Return what the tables of a sweep with valid launches show."""
    scaling, workload = view.scaling, loaded.runs[0].point.workload
    breakdown = rows_of(view.parts)
    beyond = overheads(scaling, view.launches, PARTS)
    final = final_frame(view.launches)
    prediction, starts = read_prediction(loaded.folder), _first_starts(view.launches)
    goal = default_accuracy(view.launches, scaling.base.layout)
    targets = _targets(loaded.epochs, scaling, goal) if goal is not None else ()
    sentences = (captions.headline(scaling, workload), captions.to_accuracy(scaling, targets, goal))
    return {
        "head": Head(
            question=captions.question(scaling, workload),
            answer=" ".join(filter(None, sentences)),
            tiles=tiles(scaling, beyond, final, loaded.runs, targets, goal),
            facts=run_facts(loaded.valid, loaded.runs),
        ),
        "methods": methods(loaded, scaling),
        "references": bibtex(loaded.valid),
        "scaling": scaling,
        "others": reference_points(view.launches, scaling, _claims(workload)),
        "caps": beyond,
        "fits": view.fits,
        "reference": view.reference,
        "target": goal,
        "targets": targets,
        "prediction": prediction,
        "scores": score(prediction, scaling.points, starts) if prediction else (),
        "growth_scores": score(prediction, scaling.points, starts, growth=True) if prediction else (),
        "breakdown": breakdown,
        "epoch_parts": EPOCH,
        "launch_parts": visible(view.parts, LAUNCH),
        "final": rows_of(final),
        "method": captions.method(scaling),
        "repeats": captions.repeats(scaling),
    }


def _first_starts(launches: pd.DataFrame) -> dict[str, datetime]:
    """Return when the first valid launch of each layout began."""
    starts = launches[launches["valid"]].groupby("layout")["started"].min()
    return {str(layout): start for layout, start in starts.items()}


def _targets(epochs: pd.DataFrame, scaling: Scaling, goal: float) -> tuple[TimeToAccuracy, ...]:
    """Return every layout's time to the accuracy `goal` over the base's."""
    times = times_to_accuracy(epochs, goal)
    return speedups_to_accuracy(times, times[times["layout"] == scaling.base.layout])


def _claims(workload: Workload) -> tuple[Claim, ...]:
    """Return the published claims about `workload`."""
    published = read_published(resource(CLAIMS_FILE))
    return tuple(claim for claim in published.claims if claim.experiment == workload.name)


def rows_of(frame: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    """Return the rows of `frame` for a template."""
    return tuple({str(name): value for name, value in row.items()} for row in frame.to_dict("records"))


def tiles(
    scaling: Scaling,
    points: Sequence[PointOverheads],
    final: pd.DataFrame,
    runs: Sequence[RunRecord],
    targets: Sequence[TimeToAccuracy] = (),
    goal: float | None = None,
) -> tuple[Tile, ...]:
    """Return speedup, speedup to equal accuracy, efficiency, the largest overhead, accuracy and the launches.

    `final` is `learning.final_frame` of the same launches; `runs` are all of them, invalid ones too. `targets` and
    `goal` as in `to_accuracy`.
    """
    speedup, *efficiency = _ratios(scaling)
    to_equal = _to_accuracy_tile(scaling, targets, goal)
    return (
        speedup,
        *to_equal,
        *efficiency,
        *_largest_overhead(points),
        *_accuracy(final),
        _launches_tile(scaling, runs),
    )


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
    if last.other_session:
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


def _largest_overhead(points: Sequence[PointOverheads]) -> list[Tile]:
    if not points:
        return []
    last, largest = points[-1], points[-1].largest
    if largest is None:
        return [Tile(name="Largest overhead", value="none", detail="no part takes 1 % more than its ideal share")]
    detail = (
        f"{numbers.percent(largest.fraction)} of the epoch at {numbers.ranks(last.ranks)}; "
        f"without it the speedup would be at most about {largest.speedup_without:.2f}"
        + (f", 95 % interval {numbers.ratio_span(largest.speedup_interval)}" if largest.speedup_interval else "")
    )
    return [Tile(name="Largest overhead", value=largest.cause.name, detail=detail)]


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
