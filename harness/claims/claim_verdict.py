"""What is found of a claim: an outcome, and the ratios and comparisons that rules decide by.

A statement is true, false, or open (None) by its 95 % interval: a printed number holds where all of the interval lies
within `NEAR` of it, and not where none of it does. What is open is said with the one thing that is missing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from harness.analysis import units
from harness.analysis.confidence_intervals import FEWEST_BLOCKS, FEWEST_LAUNCHES, Interval
from harness.analysis.scaling import scale
from harness.claims.claim_evidence import ClaimEvidence

CONFIRMED = "confirmed"
REFUTED = "refuted"
UNKNOWN = "cannot be said"
ERRATUM = "printed wrong in the paper"

NEAR = 0.1  # of a printed number: this far from it a measured one is the same


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimFinding:
    """An outcome, why in one sentence without its point, and the sweeps that it rests on.

    `missing` is the one thing without which it cannot be said, empty where it can.
    """

    outcome: str
    reason: str
    used: tuple[ClaimEvidence, ...] = ()
    missing: str = ""

    def __str__(self) -> str:
        lack = f"missing: {self.missing}" if self.missing else ""
        return f"{self.outcome}: {'; '.join(filter(None, (self.reason, lack)))}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CountRatio:
    """How many times as much `value` is on `count` ranks as on `over`, with its interval where there is one."""

    over: int
    count: int
    value: float
    interval: Interval | None

    def __str__(self) -> str:
        span = f" (95 % interval {units.ratio_span(self.interval)})" if self.interval else ""
        return f"{self.value:.2f}{span} on {units.ranks(self.count)} over {self.over}"

    @property
    def short(self) -> str:
        """The value with its interval, without the counts."""
        return f"{self.value:.2f} ({units.ratio_span(self.interval)})"


def count_ratio(
    evidence: ClaimEvidence, over: int, count: int, column: str = "seconds", launches: pd.DataFrame | None = None
) -> CountRatio | None:
    """Return `column` of the median launch on `over` ranks over that on `count`; None where the work differs.

    Of `launches` that have more columns than those of the `evidence`. Rounds of turns are of `seconds` only.
    """
    frame = evidence.launches if launches is None else launches
    frame = frame.assign(seconds=frame[column])
    if column != "seconds":
        frame["ran_seconds"] = math.nan
    scaling = scale(frame, base_ranks=over)
    assert scaling is not None
    point = next(point for point in scaling.points if point.ranks == count)
    if point.speedup is None:
        return None
    return CountRatio(over=over, count=count, value=point.speedup, interval=point.speedup_interval)


def above(interval: Interval | None, limit: float) -> bool | None:
    """Say whether all of `interval` lies above `limit`, or none of it; None where it holds the limit or is missing."""
    if interval is None or interval.low <= limit <= interval.high:
        return None
    return interval.low > limit


def less(lower: Interval | None, upper: Interval | None) -> bool | None:
    """Say whether `lower` lies below `upper`, or above it; None where they overlap or one is missing."""
    if lower is None or upper is None or (lower.low <= upper.high and upper.low <= lower.high):
        return None
    return lower.high < upper.low


def near(value: float, reading: float = 0.0) -> Interval:
    """Return what a measured ratio may be where a printed one holds, which was read off a chart within `reading`."""
    return Interval(low=value * (1 - NEAR) - reading, high=value * (1 + NEAR) + reading)


def within(interval: Interval | None, limits: Interval) -> bool | None:
    """Say whether all of `interval` lies within `limits`, or none of it; None where a part does or it is missing."""
    if interval is None:
        return None
    if interval.high < limits.low or interval.low > limits.high:
        return False
    return True if limits.low <= interval.low and interval.high <= limits.high else None


def negated(statement: bool | None) -> bool | None:
    """Return whether `statement` does not hold; None where it is open."""
    return None if statement is None else not statement


def finding_on_parts(
    parts: Iterable[bool | None], reason: str, *used: ClaimEvidence, rests: Iterable[Interval | None]
) -> ClaimFinding:
    """Return the finding on a claim that says all of `parts`: one that fails refutes it. `rests`: their intervals."""
    statements = list(parts)
    outcome = CONFIRMED
    if False in statements:
        outcome = REFUTED
    elif None in statements or not statements:
        outcome = UNKNOWN
    missing = "launches enough for a narrower interval"
    if None in list(rests):
        missing = f"an interval, which needs {FEWEST_LAUNCHES} launches of each, or {FEWEST_BLOCKS} in turns"
    return ClaimFinding(outcome=outcome, reason=reason, used=used, missing=missing if outcome == UNKNOWN else "")


def unknown_for(missing: str, *used: ClaimEvidence, reason: str = "") -> ClaimFinding:
    """Return that the claim cannot be said for want of what is `missing`."""
    return ClaimFinding(outcome=UNKNOWN, reason=reason, used=used, missing=missing)


def other_work(*used: ClaimEvidence) -> ClaimFinding:
    """Return that the claim cannot be said, as the points did not do the same work."""
    return unknown_for("points that did the same work", *used)


def measured_on(evidence: ClaimEvidence) -> str:
    """Return the rank counts that were measured, in words."""
    return f"measured on {', '.join(map(str, evidence.counts))} {'GPUs' if evidence.gpus else 'ranks'}"
