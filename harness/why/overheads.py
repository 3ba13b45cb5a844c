"""Overheads: what a point takes beyond its ideal time, by cause, in one vocabulary for reports and checks.

A part of the time (`analysis.time_parts.PART_NAMES`) is divided into causes, and each cause lowers one efficiency
(`why.efficiencies.TREE`); `why.known_causes` says which overhead what it finds is part of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from harness.analysis.comparison import LayoutLaunches, comparable, launches_by_layout, undisturbed_launches
from harness.analysis.confidence_intervals import FEWEST_LAUNCHES, Interval, percentiles, resampled_shares
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.sync_calls import Calls
from harness.analysis.time_parts import EPOCH_PARTS, LAUNCH_PARTS, PART_NAMES, equal_shares, mean_launches

Array = NDArray[np.float64]
LEAST = 0.01  # of the measured time: an overhead below this limits nothing
_TOTAL = "all_causes_seconds"  # the column of the sum of all causes
_COMPARED = ["layout", "repeat", "session_begin", "session_end", "disturbed"]  # what pairs launches
_LISTED = 0.001  # of the measured time: a cause below this is not worth a line


@dataclass(frozen=True, kw_only=True, slots=True)
class OverheadCause:
    """A cause of overhead: its column (seconds), its name, the column of the part of the time that it belongs to.

    `lowers` is the POP efficiency that it lowers, empty where there is no single one.
    """

    column: str
    name: str
    part: str
    lowers: str = ""


def _causes(part: str, *causes: tuple[str, str, str]) -> tuple[OverheadCause, ...]:
    return tuple(
        OverheadCause(column=f"{name}_seconds", name=words, part=part, lowers=lowers) for name, words, lowers in causes
    )


PARTS = tuple(OverheadCause(column=part, name=PART_NAMES[part], part=part) for part in EPOCH_PARTS)


CAUSES = (
    *_causes(
        "compute_seconds",
        ("computing", "slower computation", "computation scaling"),
        ("queue", "cores taken by others", "computation scaling"),
    ),
    *_causes("input_seconds", ("input", "input", "computation scaling")),
    *_causes(
        "skew_seconds",
        ("skew_rows", "unequal rows", "load balance"),
        ("skew_rank", "a slow rank", "load balance"),
        ("skew_rare", "rare delays", "serialisation efficiency"),
        ("skew_jitter", "jitter of every step", "serialisation efficiency"),
        ("skew_leaving", "leaving the last allreduce at different times", "serialisation efficiency"),
    ),
    *_causes(
        "wire_seconds",
        ("latency", "allreduce: latency", "transfer efficiency"),
        ("bandwidth", "allreduce: bandwidth", "transfer efficiency"),
        ("sum", "allreduce time", "transfer efficiency"),
    ),
    *_causes("compute_seconds", ("unexplained", "not explained", "")),
)
"""The causes of the overhead of an epoch: those of a part sum to the part, all to the epoch's time."""


LAUNCH_CAUSES = tuple(OverheadCause(column=part, name=PART_NAMES[part], part=part) for part in LAUNCH_PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """What one cause takes beyond its ideal share: seconds, part of the measured time, part of all overhead.

    Below zero it is a gain. `share` is None where there is too little overhead to divide it. `speedup_without` is about
    the most speedup that there is without it, since that nothing else would change is an assumption; None for a gain.
    Intervals are bootstraps over the launches of both points, which all causes hold together with 95 %; None below 6 or
    where sessions differ, that of `share` also where there may be no overhead.
    """

    cause: OverheadCause
    seconds: float
    fraction: float
    fraction_interval: Interval | None
    share: float | None
    share_interval: Interval | None
    speedup_without: float | None
    speedup_interval: Interval | None

    @property
    def sure(self) -> bool:
        """Whether its interval, where there is one, excludes 0."""
        interval = self.fraction_interval
        return interval is None or interval.low > 0 or interval.high < 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PointOverheads:
    """The overhead of one point: `ideal` and `measured` seconds, and an item for each cause, in the order of these.

    `fraction_interval` is that of all overhead as part of the measured time, None where the items have none.
    """

    layout: str
    ranks: int
    ideal: float
    measured: float
    fraction_interval: Interval | None
    items: tuple[Overhead, ...]

    @property
    def seconds(self) -> float:
        """Seconds that the point takes beyond the ideal."""
        return self.measured - self.ideal

    @property
    def listed(self) -> tuple[Overhead, ...]:
        """The items that are worth a line, costliest first: those of at least 0.1 % of the measured time."""
        worth = [item for item in self.items if abs(item.fraction) >= _LISTED]
        return tuple(sorted(worth, key=lambda item: -item.seconds))

    @property
    def costs(self) -> tuple[Overhead, ...]:
        """The items that are not gains, costliest first."""
        costs = [item for item in self.items if item.speedup_without is not None]
        return tuple(sorted(costs, key=lambda item: -item.seconds))

    @property
    def largest(self) -> Overhead | None:
        """The item that limits the speedup most, None where all are below 1 %."""
        return self.costs[0] if self.costs and self.costs[0].fraction >= LEAST else None


def overheads(
    scaling: Scaling, launches: pd.DataFrame, causes: Sequence[OverheadCause] = CAUSES, *, in_full: bool = True
) -> tuple[PointOverheads, ...]:
    """Return the overheads of every point with a speedup, other than the base; `launches` are those of `scaling`.

    The ideal share of a part of the time is the base's divided by the ratio of the ranks (strong scaling) or the same
    (weak). The CAUSES need the columns of `efficiencies.Detailed`; those of PARTS and LAUNCH_CAUSES are in every
    `launch_frames.launch_frame` and `time_parts.with_launch_parts`. `in_full`: with the intervals of fractions and
    shares, not those of speedups alone.
    """
    columns = [cause.column for cause in causes]
    valid = launches.loc[launches["valid"], [*_COMPARED, *columns]]  # of the frame's fifty columns those that are read
    valid = undisturbed_launches(valid.assign(**{_TOTAL: valid[columns].sum(axis=1)}))
    compared = _Compared(
        groups=launches_by_layout(valid),
        base=scaling.base.layout,
        seconds=valid[_TOTAL].to_numpy(),
        parts=valid[columns].to_numpy(),
    )
    points = [point for point in scaling.others if point.speedup is not None]
    return tuple(_point_overheads(point, compared, scaling, causes, in_full=in_full) for point in points)


def _point_overheads(
    point: PointScaling,
    compared: "_Compared",
    scaling: Scaling,
    causes: Sequence[OverheadCause],
    *,
    in_full: bool,
) -> PointOverheads:
    is_strong = scaling.scaling == "strong"
    share = point.ideal if is_strong else 1.0
    parts = compared.as_launched(point.layout, share)
    if causes is not LAUNCH_CAUSES:
        parts = parts.scaled(scaling.base.seconds / share, point.seconds)
    ideal = float(parts.ideal[0])
    measured = float(parts.measured[0])
    is_divided = measured - ideal >= LEAST * measured
    intervals = compared.intervals(point.layout, share, divided=is_divided, in_full=in_full)
    items = []
    for number, cause in enumerate(causes):
        seconds = float(parts.excess[0, number])
        is_cost = 0 < seconds < measured  # what is left of the time without it is never nothing
        speedup_without = None
        speedup_interval = None
        if is_cost:
            speedup_without = point.ideal * ideal / (measured - seconds)
            speedup_interval = intervals.speedups[number]
        if speedup_interval and not is_strong:
            speedup_interval = speedup_interval.scaled(point.ideal)
        items.append(
            Overhead(
                cause=cause,
                seconds=seconds,
                fraction=seconds / measured,
                fraction_interval=intervals.fractions[number],
                share=seconds / (measured - ideal) if is_divided else None,
                share_interval=intervals.shares[number],
                speedup_without=speedup_without,
                speedup_interval=speedup_interval,
            )
        )
    return PointOverheads(
        layout=point.layout,
        ranks=int(point.ranks),
        ideal=ideal,
        measured=measured,
        fraction_interval=intervals.total,
        items=tuple(items),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _OverheadParts:
    """Seconds of draws of launches: `ideal` and `measured` [draws], by cause `ideal_parts` and `excess`, which is
    beyond them [draws, causes]."""

    ideal: Array
    measured: Array
    excess: Array
    ideal_parts: Array

    def scaled(self, ideal: float, measured: float) -> "_OverheadParts":
        """Return them with other times, of which the causes keep their parts."""
        ideal_parts = self.ideal_parts * (ideal / self.ideal)[:, None]
        measured_parts = (self.excess + self.ideal_parts) * (measured / self.measured)[:, None]
        return _OverheadParts(
            ideal=np.full_like(self.ideal, ideal),
            measured=np.full_like(self.measured, measured),
            excess=measured_parts - ideal_parts,
            ideal_parts=ideal_parts,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _OverheadIntervals:
    """Intervals of all overhead as part of the time (`total`), and by cause; None below 6 launches."""

    total: Interval | None
    fractions: Sequence[Interval | None]
    shares: Sequence[Interval | None]
    speedups: Sequence[Interval | None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Compared:
    """The launches of all layouts (`groups`): `seconds` of each, and their `parts` [launches, causes]; the `base`."""

    groups: Mapping[str, LayoutLaunches]
    base: str
    seconds: Array
    parts: Array

    def as_launched(self, layout: str, share: float) -> _OverheadParts:
        """Return what the causes take of the launches of `layout`, as one draw."""
        base = self.groups[self.base]
        group = self.groups[layout]
        shares = equal_shares(len(base.places)), equal_shares(len(group.places))
        return self._parts(base, group, shares, share)

    def intervals(self, layout: str, share: float, *, divided: bool, in_full: bool) -> _OverheadIntervals:
        """Return bootstraps over the launches of both points, which all causes hold together with 95 %."""
        rows = self.parts.shape[1]
        nothing: list[Interval | None] = [None] * rows
        pair = comparable(self.groups[self.base], self.groups[layout])
        if pair is None or pair.fewest < FEWEST_LAUNCHES:
            return _OverheadIntervals(total=None, fractions=nothing, shares=nothing, speedups=nothing)
        drawn = resampled_shares(len(pair.base.places), len(pair.group.places), paired=pair.paired)
        parts = self._parts(pair.base, pair.group, drawn, share)
        seconds_without = np.maximum(parts.measured[:, None] - parts.excess, np.finfo(float).tiny)
        speedups = share * parts.ideal[:, None] / seconds_without
        of_speedups = [percentiles(values, pair.fewest, rows=rows) for values in speedups.T]
        if not in_full:
            return _OverheadIntervals(total=None, fractions=nothing, shares=nothing, speedups=of_speedups)
        overhead = parts.measured - parts.ideal
        total = percentiles(overhead / parts.measured, pair.fewest)
        fractions = parts.excess / parts.measured[:, None]
        shares = nothing
        if divided and total.low >= LEAST:  # else some draws have next to no overhead, which nothing can be a part of
            shares = [percentiles(values, pair.fewest, rows=rows) for values in (parts.excess / overhead[:, None]).T]
        return _OverheadIntervals(
            total=total,
            fractions=[percentiles(values, pair.fewest, rows=rows) for values in fractions.T],
            shares=shares,
            speedups=of_speedups,
        )

    def _parts(
        self, base: LayoutLaunches, group: LayoutLaunches, shares: tuple[Array, Array], share: float
    ) -> _OverheadParts:
        """Return what the causes take of draws, by their `shares`; the base's parts over `share` are ideal."""
        base_seconds, base_parts = mean_launches(self.seconds[base.places], self.parts[base.places], shares[0])
        seconds, parts = mean_launches(self.seconds[group.places], self.parts[group.places], shares[1])
        ideal_parts = base_parts / share
        return _OverheadParts(
            ideal=base_seconds / share, measured=seconds, excess=parts - ideal_parts, ideal_parts=ideal_parts
        )


# For whom ranks wait at synchronisation calls, and by which cause, from the times of single calls.

SKEW_CAUSES = ("leaving", "rows", "rank", "rare", "jitter")
FAR_OUT = 3.0  # Tukey 1977: this many interquartile ranges beyond the quartiles


@dataclass(frozen=True, kw_only=True, slots=True)
class LastRank:
    """What the others waited for one rank: `seconds` of every epoch, means over the ranks; `calls` it was last in.

    `share` is its part of all waiting, `usual_s` by how much it usually came later than the mean of the ranks
    (negative: sooner), by the median of the calls.
    """

    rank: int
    seconds: float
    share: float
    calls: float
    usual_s: float


def skew_shares(epochs: Sequence[Calls], batch: ArrayLike) -> dict[str, float]:
    """Return which part of a launch's waiting has which of the SKEW_CAUSES; together 1, all 0 where nobody waits.

    `batch` [ranks] are the rows of a step by rank. Causes are taken away one after the other, and what no longer
    waits then is the cause's, so that they sum to the whole:

    leaving  ranks left the last allreduce at different times
    rows     ranks have unequal rows of a step: the part of `rank` that grows with them, at most in proportion
    rank     a rank usually takes longer than the others: medians over the calls
    rare     single calls that come far later than the same rank's others (Tukey's outer fences)
    jitter   what differs from call to call
    """
    late = np.concatenate([_lateness(calls.entry) for calls in epochs])
    left = np.concatenate([_lateness(np.vstack([calls.begin, calls.exit])[: len(calls.entry)]) for calls in epochs])
    waited = _waited(late)
    if not len(late) or waited <= 0:
        return dict.fromkeys(SKEW_CAUSES, 0.0)
    computed = late - left
    usual = np.median(computed, axis=0)
    usual -= usual.mean()
    by_rows = _by_rows(usual, epochs, np.asarray(batch, dtype=float))
    single = computed - usual
    low, high = np.percentile(single, [25, 75], axis=0)
    reach = FAR_OUT * (high - low)
    stages = [late, computed, computed - by_rows, single, np.clip(single, low - reach, high + reach)]
    left_over = [*(_waited(stage) for stage in stages), 0.0]
    gains = np.maximum(-np.diff(left_over), 0.0)
    return {cause: float(share) for cause, share in zip(SKEW_CAUSES, gains / gains.sum(), strict=True)}


def last_ranks(epochs: Sequence[Calls]) -> tuple[LastRank, ...]:
    """Return for each rank how long the others waited for it; empty where there is no call."""
    entry = np.concatenate([calls.entry for calls in epochs])
    if not len(entry):
        return ()
    ranks = entry.shape[1]
    last = entry.argmax(axis=1)
    waited = entry.max(axis=1) - entry.mean(axis=1)
    seconds = np.bincount(last, waited, ranks)
    calls = np.bincount(last, minlength=ranks)
    usual = np.median(_lateness(entry), axis=0)
    return tuple(
        LastRank(
            rank=rank,
            seconds=float(seconds[rank] / len(epochs)),
            share=float(seconds[rank] / waited.sum()) if waited.sum() > 0 else 0.0,
            calls=float(calls[rank] / len(entry)),
            usual_s=float(usual[rank]),
        )
        for rank in range(ranks)
    )


def _lateness(times: Array) -> Array:
    """Return how much later than the mean of the ranks each rank was, [calls, ranks]."""
    later: Array = times - times.mean(axis=1, keepdims=True)
    return later


def _waited(late: Array) -> float:
    """Return the seconds that ranks waited for the last of every call, mean over the ranks; `late` by `_lateness`."""
    return float((late.max(axis=1) - late.mean(axis=1)).sum()) if len(late) else 0.0


def _by_rows(usual: Array, epochs: Sequence[Calls], batch: Array) -> Array:
    """Return the part of `usual` [ranks] that the `batch` explains: a line through it, no steeper than in proportion.

    A step has costs that do not grow with its rows, so that it is less than in proportion.
    """
    more = batch - batch.mean()
    if not more.any():
        return np.zeros_like(usual)
    computing = np.median(np.concatenate([calls.between[:-1] for calls in epochs]).mean(axis=1))
    slope = float(np.clip((more * usual).sum() / (more**2).sum(), 0.0, computing / batch.mean()))
    explained: Array = slope * more
    return explained
