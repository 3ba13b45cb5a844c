"""What a rule finds, and the small statements that rules are made of: true, false, or open."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from harness.analysis import numbers
from harness.analysis.scaling import scale
from harness.analysis.stats import NEEDED, Interval
from harness.claims.evidence import ClaimEvidence

CONFIRMED = "confirmed"
REFUTED = "refuted"
INCONCLUSIVE = "inconclusive"
NOT_COMPARABLE = "not comparable"
NOT_MEASURED = "not measured"
ERRATUM = "erratum"

JUDGED = (CONFIRMED, REFUTED, INCONCLUSIVE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimFinding:
    """An outcome, why in one sentence without its point, and the sweeps that it rests on."""

    outcome: str
    said: str
    used: tuple[ClaimEvidence, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CountRatio:
    """How many times as much `value` is on `count` ranks as on `over`, with its interval where there is one."""

    over: int
    count: int
    value: float
    interval: Interval | None

    def __str__(self) -> str:
        span = f" (95 % interval {numbers.ratio_span(self.interval)})" if self.interval else ""
        return f"{self.value:.2f}{span} on {numbers.ranks(self.count)} over {self.over}"


def ratio(launches: pd.DataFrame, over: int, count: int, column: str = "seconds") -> CountRatio | None:
    """Return `column` of the median launch on `over` ranks over that on `count`; None where the work differs."""
    scaling = scale(launches.assign(seconds=launches[column]), base_ranks=over)
    assert scaling is not None
    point = next(point for point in scaling.points if point.ranks == count)
    if point.speedup is None:
        return None
    return CountRatio(over=over, count=count, value=point.speedup, interval=point.speedup_interval)


def above(interval: Interval | None, limit: float) -> bool | None:
    """Tell whether all of `interval` lies above `limit`, or none of it; None where it holds the limit or is missing."""
    if interval is None or interval.low <= limit <= interval.high:
        return None
    return interval.low > limit


def less(one: Interval | None, other: Interval | None) -> bool | None:
    """Tell whether `one` lies below `other`, or above it; None where they overlap or one is missing."""
    if one is None or other is None or (one.low <= other.high and other.low <= one.high):
        return None
    return one.high < other.low


def decide(parts: Iterable[bool | None]) -> str:
    """Return the outcome of a claim that says all of `parts`: one that fails refutes it."""
    known = list(parts)
    if False in known:
        return REFUTED
    return INCONCLUSIVE if None in known or not known else CONFIRMED


def lacking(intervals: Iterable[Interval | None]) -> str:
    """Return what is to be said where an interval is missing, an empty text where none is."""
    return f"; an interval needs {NEEDED} launches of each" if None in list(intervals) else ""
