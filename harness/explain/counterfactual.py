"""Counterfactuals: the same launch with exactly one cause taken away, and what that must give, told beforehand."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from harness.analysis.breakdown import median_launches
from harness.analysis.stats import NEEDED, Interval, percentiles, resamples
from harness.explain.evidence import Explanation, cost_of
from harness.schema.layout import Layout
from harness.schema.record import RunRecord
from harness.schema.sweep import Sweep
from harness.schema.sync import Gradients, NoSync
from harness.schema.workload import IMAGENET, is_script

AS_IT_IS = "as it is"
_NO_SUMS = "no sums"
WORTH = 0.01  # of the epoch: what is expected to give less proves nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The part of the epoch's time that is expected to go: the value and from where to where it may lie.

    That is the 95 % interval over launches, below 6 of them from the least to the most of a launch.
    """

    value: float
    low: float
    high: float

    @property
    def interval(self) -> Interval | None:
        """From `low` to `high`; None where only the value is known."""
        return Interval(low=self.low, high=self.high) if self.low < self.high else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Counterfactual:
    """One launch to make: `removes` says what is gone, `how` by which setting, `against` what it is compared with."""

    name: str
    removes: str
    how: str
    sweep: Sweep
    expected: Expected
    against: str = AS_IT_IS


Gain = Callable[[pd.DataFrame], "pd.Series[float]"]


def counterfactuals(found: Explanation, layout: str) -> tuple[Counterfactual, ...]:
    """Return the launches that prove the bill of `layout`, those that are expected to give 1 % of its epoch or more.

    And those that such a one is compared with.
    """
    group = found.explained.launches
    group = group[group["layout"] == layout]
    run = next(run for run in found.loaded.valid if str(run.point.layout) == layout)
    possible = [*_without_sums(run, group), *_other_wire(found, run, group), *_equal(run, group), *_input(run, group)]
    possible += _alone(found, run, group) if any(one.name == _NO_SUMS for one in possible) else []
    worth = {one.name for one in possible if max(abs(one.expected.low), abs(one.expected.high)) >= WORTH}
    needed = {one.against for one in possible if one.name in worth}
    return tuple(one for one in possible if one.name in worth | needed)


def as_it_is(run: RunRecord) -> Sweep:
    """Return the sweep of the launch itself; it is launched again beside those that change something."""
    point = run.point
    return Sweep(
        workload=point.workload,
        layouts=(point.layout,),
        repeats=1,
        data_id=point.data_id,
        oversubscribe=point.oversubscribe,
        settings=point.settings,
    )


def _changed(run: RunRecord, **changes: object) -> Sweep:
    sweep = as_it_is(run)
    return replace(sweep, workload=replace(sweep.workload, **changes))  # type: ignore[arg-type]


def _expected(group: pd.DataFrame, gain: Gain) -> Expected:
    """Return the part of the median launch's epoch that `gain` (seconds by launch) is."""
    shown = group.assign(gain=gain(group))
    seconds, columns = median_launches(shown, np.arange(len(shown))[None], ["gain"])
    value = float(columns[0, 0] / seconds[0])
    single = shown["gain"] / shown["seconds"]
    interval = Interval(low=float(single.min()), high=float(single.max()))
    if len(shown) >= NEEDED:
        seconds, columns = median_launches(shown, resamples(len(shown), 1, paired=True)[0], ["gain"])
        interval = percentiles(columns[:, 0] / seconds, len(shown))
    return Expected(value=value, low=min(value, interval.low), high=max(value, interval.high))


def _without_sums(run: RunRecord, group: pd.DataFrame) -> Iterator[Counterfactual]:
    """Without sums nobody waits and nothing is sent: what is left is the rank with most useful time."""
    workload = run.point.workload
    if run.point.layout.ranks > 1 and workload.sync != NoSync.form and not workload.sync_bn and not is_script(workload):
        yield Counterfactual(
            name=_NO_SUMS,
            removes="skew and sums",
            how=f"SYNC={NoSync.form}",
            sweep=_changed(run, sync=NoSync.form, wire="float32"),
            expected=_expected(group, lambda rows: rows["seconds"] - rows["longest_seconds"]),
        )


def _other_wire(found: Explanation, run: RunRecord, group: pd.DataFrame) -> Iterator[Counterfactual]:
    workload = run.point.workload
    if run.point.layout.ranks == 1 or workload.sync == NoSync.form:
        return
    if workload.sync == Gradients.form and workload.wire == "float32" and not is_script(workload):
        half = _expected(group, lambda rows: rows["bandwidth_seconds"] / 2)
        rest = _expected(group, lambda rows: rows["sum_seconds"] / 2)
        told = not group["bandwidth_seconds"].eq(0).all()
        # What no probe has told apart may be all latency, of which fewer bytes save nothing, or all bandwidth.
        most = half if told else Expected(value=rest.value / 2, low=0.0, high=rest.high)
        yield Counterfactual(
            name="half the bytes",
            removes="half of the sum's bandwidth term",
            how="WIRE=bf16",
            sweep=_changed(run, wire="bf16"),
            expected=most,
        )
    other = cost_of(found.probe, run, "messages") if found.probe else None
    if other is not None and "MPI_Allreduce" not in run.provenance.reduction:
        takes = other.seconds(run.weights.bytes) * run.steps_per_epoch
        yield Counterfactual(
            name="messages",
            removes="shared memory between the ranks",
            how="HARNESS_REDUCTION=messages",
            sweep=replace(as_it_is(run), settings=(("HARNESS_REDUCTION", "messages"),)),
            expected=_expected(group, lambda rows: rows["wire_seconds"] - takes),
        )


def _equal(run: RunRecord, group: pd.DataFrame) -> Iterator[Counterfactual]:
    layout = run.point.layout
    if layout.shares is not None:
        yield Counterfactual(
            name="equal rows",
            removes="unequal rows",
            how="equal parts of the rows for all ranks",
            sweep=replace(as_it_is(run), layouts=(replace(layout, shares=None),)),
            expected=_expected(group, lambda rows: rows["skew_rows_seconds"]),
        )


def _input(run: RunRecord, group: pd.DataFrame) -> Iterator[Counterfactual]:
    workload = run.point.workload
    if workload.dataset == IMAGENET and workload.input != "resident":
        yield Counterfactual(
            name="no input",
            removes="decoding images",
            how="INPUT=resident",
            sweep=_changed(run, input="resident"),
            expected=_expected(group, lambda rows: rows["input_seconds"]),
        )


def _alone(found: Explanation, run: RunRecord, group: pd.DataFrame) -> Iterator[Counterfactual]:
    """One rank with a rank's rows and batch of the point: its step as no neighbour disturbs it."""
    layout, bill = run.point.layout, next((one for one in found.bills if one.layout == str(run.point.layout)), None)
    grown = next((item for item in bill.items if item.cause.column == "computing_seconds"), None) if bill else None
    if grown is None or layout.shares is not None or run.point.workload.seconds is not None:
        return
    rows = int(group["all_rows"].iloc[0])
    interval = grown.fraction_interval or Interval(low=grown.fraction, high=grown.fraction)
    batch = max(1, run.global_batch // layout.ranks)
    own = {"samples": rows // layout.ranks, "batch_per_rank": batch, "global_batch": None}
    yield Counterfactual(
        name="a rank alone",
        removes="neighbours on the machine",
        how="one rank, a rank's rows and batch",
        sweep=replace(
            _changed(run, **own, sync=NoSync.form, wire="float32"),
            layouts=(Layout(nodes=1, threads=layout.threads, gpus_per_rank=layout.gpus_per_rank),),
        ),
        expected=Expected(value=grown.fraction, low=interval.low, high=interval.high),
        against=_NO_SUMS,
    )
