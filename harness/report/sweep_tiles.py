"""The numbers of a sweep's first screen, each with its doubt."""

from collections.abc import Iterator

from harness.analysis import units
from harness.analysis.scaling import PointScaling, Scaling, needed_launches
from harness.report.answer import Fact
from harness.report.figures import SweepView
from harness.report.report_time_sections import report_time_tile
from harness.report.sweep_sentences import last_point, speedup_label, target_of
from harness.report.sweep_tables import rows_of

_INTERVAL = "95 % interval "


def sweep_tiles(view: SweepView) -> Iterator[Fact]:
    """Yield speedup, also to equal accuracy, efficiency, JUPITER's metric, the largest overhead, accuracy, launches."""
    last = last_point(view.scaling)
    yield _epoch_time(view.scaling) if last is None else _speedup(last, view.scaling)
    yield from _speedup_to_accuracy(view)
    if last is not None:
        interval = _no_interval(last, view.scaling)
        if last.efficiency_interval:
            interval = _INTERVAL + units.percent_span(last.efficiency_interval)
        yield Fact(name="Efficiency", value=units.percent(last.efficiency), detail=interval)
    yield from report_time_tile(view.runs[0].point.workload, view.scaling)
    if view.costs:
        yield _largest_overhead(view)
    yield from _accuracy(view)
    invalid = sum(bool(run.invalid) for run in view.runs)
    outliers = sum(point.outliers for point in view.scaling.points)
    detail = f"{units.span(*view.scaling.repeats)} per point"
    if invalid:
        detail += f"; {units.plural(invalid, 'launch')} invalid and excluded"
    if outliers:
        detail += f"; {units.plural(outliers, 'outlier')}, counted and marked"
    yield Fact(name="Valid launches", value=units.count(len(view.runs) - invalid), detail=detail)


def _epoch_time(scaling: Scaling) -> Fact:
    base = scaling.base
    detail = f"{units.ranks(base.ranks)}, median of {units.plural(base.launches, 'launch')}"
    return Fact(name="Epoch time", value=units.seconds(base.seconds), detail=detail)


def _speedup(last: PointScaling, scaling: Scaling) -> Fact:
    interval = _no_interval(last, scaling)
    if last.speedup_interval:
        interval = _INTERVAL + units.ratio_span(last.speedup_interval)
    detail = f"{units.ranks(last.ranks)} over {units.ranks(scaling.base.ranks)}; {interval}"
    return Fact(name=speedup_label(scaling), value=f"{last.speedup:.2f}", detail=detail)


def _no_interval(last: PointScaling, scaling: Scaling) -> str:
    if last.other_session:
        return "no interval: launched in another session than the base"
    return f"no interval: {units.plural(needed_launches(scaling), 'launch')} too few"


def _speedup_to_accuracy(view: SweepView) -> Iterator[Fact]:
    target = target_of(view.scaling, view.targets)
    if target is None or view.goal is None:
        return
    goal = f"to {units.percent(view.goal, 1)} test accuracy"
    reached = f"reached by {target.reached} of {units.plural(target.launches, 'launch')}"
    value = "none"
    detail = f"{goal}, {reached}"
    if target.speedup is not None:
        value = f"{target.speedup:.2f}"
        interval = f"no interval; {reached}"
        if target.interval:
            interval = _INTERVAL + units.ratio_span(target.interval)
        detail = f"{goal}; {interval}"
    yield Fact(name="Speedup to equal accuracy", value=value, detail=detail)


def _largest_overhead(view: SweepView) -> Fact:
    point = view.costs[-1]
    largest = point.largest
    if largest is None:
        return Fact(name="Largest overhead", value="none", detail="no part takes 1 % more than its ideal share")
    interval = ""
    if largest.speedup_interval:
        interval = f", {_INTERVAL}{units.ratio_span(largest.speedup_interval)}"
    detail = (
        f"{units.percent(largest.fraction)} of the epoch at {units.ranks(point.ranks)}; "
        f"without it the speedup would be at most about {largest.speedup_without:.2f}{interval}"
    )
    return Fact(name="Largest overhead", value=largest.cause.name, detail=detail)


def _accuracy(view: SweepView) -> Iterator[Fact]:
    rows = rows_of(view.final[view.final["test_accuracy"].notna()])
    if not rows:
        return
    fewest = rows[0]
    most = rows[-1]
    detail = f"{units.ranks(most['ranks'])}, after {units.plural(int(most['epochs']), 'epoch')}"
    if len(rows) > 1:
        detail += f"; {units.ranks(fewest['ranks'])}: {units.percent(fewest['test_accuracy'], 2)}"
    yield Fact(name="Test accuracy", value=units.percent(most["test_accuracy"], 2), detail=detail)
