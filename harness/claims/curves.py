"""Rules about speedup curves. Each is a function of the claim and of the sweeps that compare with it, best first."""

import math
from collections.abc import Sequence
from itertools import pairwise

from harness.analysis import numbers
from harness.analysis.stats import Interval
from harness.claims.evidence import ClaimEvidence
from harness.claims.finding import (
    NOT_COMPARABLE,
    NOT_MEASURED,
    ClaimFinding,
    CountRatio,
    above,
    decide,
    lacking,
    less,
    ratio,
)
from harness.schema.claim import Claim

WIDEST = 0.5  # an interval longer than this part of the claimed value holds too much to confirm it
KEPT = 0.9  # an improvement of at least this part of another is kept

_OTHER_WORK = "the points did not do the same work"


def speedup(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """An epoch is `value` times as fast on `count` units as on `base`; without a value: faster."""
    one = found[0]
    return _size(claim, one, ratio(one.launches, claim.base, claim.count))


def progress(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """In the same time `count` units train `value` times as many rows as `base` units do."""
    one = found[0]
    if one.workload.seconds is None:
        return speedup(claim, found)
    trained = one.launches["rows"] * one.launches["epochs"]
    launches = one.launches.assign(per_row=one.launches["trained_s"] / trained)
    return _size(claim, one, ratio(launches, claim.base, claim.count, "per_row"))


def _size(claim: Claim, one: ClaimEvidence, measured: CountRatio | None) -> ClaimFinding:
    """Direction and size by the interval: a point alone says neither."""
    if measured is None:
        return ClaimFinding(outcome=NOT_COMPARABLE, said=_OTHER_WORK, used=(one,))
    gain, held = above(measured.interval, 1), _held(claim, measured.interval)
    parts = [gain] if claim.value is None else [gain, held]
    said = f"{measured}{lacking([measured.interval])}"
    if gain is False:
        said += ", slower than on the base"
    elif held is False and claim.value is not None:
        said += f", {'less' if measured.value < claim.value else 'more'} than claimed"
    return ClaimFinding(outcome=decide(parts), said=said, used=(one,))


def _held(claim: Claim, interval: Interval | None) -> bool | None:
    """Tell whether the interval holds the claimed value, None where there is no interval or it is too wide to tell."""
    if interval is None or claim.value is None:
        return None
    if not interval.low - claim.reading <= claim.value <= interval.high + claim.reading:
        return False
    return True if interval.high - interval.low <= WIDEST * claim.value else None


def gains(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Every step up from `base` to `count` units is faster than the one before."""
    one = found[0]
    counts = [count for count in one.counts if claim.base <= count <= claim.count]
    steps = [ratio(one.launches, over, count) for over, count in pairwise(counts)]
    known = [step for step in steps if step]
    if len(known) < len(steps):
        return ClaimFinding(outcome=NOT_COMPARABLE, said=_OTHER_WORK, used=(one,))
    parts = [above(step.interval, 1) for step in known]
    told = "; ".join(map(str, known))
    return ClaimFinding(outcome=decide(parts), said=f"{told}{lacking(step.interval for step in known)}", used=(one,))


def tapers(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """From `at` units on the curve is less steep than before: log(gain) over log(units), of the steps on its two sides.

    Confirmed where the two intervals are apart, which is stricter than a test of their difference.
    """
    one = found[0]
    before = [count for count in one.counts if claim.base <= count < claim.at]
    if claim.at not in one.counts or not before:
        counts = ", ".join(map(str, one.counts))
        return ClaimFinding(
            outcome=NOT_MEASURED,
            said=f"needs {claim.at} {claim.units} and fewer, measured on {counts}",
            used=(one,),
        )
    steps = [ratio(one.launches, before[-1], claim.at), ratio(one.launches, claim.at, claim.count)]
    known = [step for step in steps if step]
    if len(known) < len(steps):
        return ClaimFinding(outcome=NOT_COMPARABLE, said=_OTHER_WORK, used=(one,))
    slopes = [_slope(step) for step in known]
    outcome = decide([above(known[0].interval, 1), less(slopes[1], slopes[0])])
    told = "; then ".join(map(str, known))
    return ClaimFinding(outcome=outcome, said=f"{told}{lacking(slopes)}", used=(one,))


def _slope(step: CountRatio) -> Interval | None:
    if step.interval is None:
        return None
    low, high = (math.log(end) / math.log(step.count / step.over) for end in (step.interval.low, step.interval.high))
    return Interval(low=low, high=high)


def modest(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """The claim's own curve gains, and less than that of the experiment it is set `against`."""
    whole = [one for one in found if {claim.base, claim.count} <= set(one.counts)]
    own = next((one for one in whole if one.experiment == claim.experiment), None)
    other = next((one for one in whole if one.experiment == claim.against), None)
    if own is None or other is None:
        missing = claim.against if own else claim.experiment
        return ClaimFinding(
            outcome=NOT_MEASURED, said=f"needs {missing} on {claim.base} and {claim.count} {claim.units} too"
        )
    pair = [ratio(one.launches, claim.base, claim.count) for one in (own, other)]
    if pair[0] is None or pair[1] is None:
        return ClaimFinding(outcome=NOT_COMPARABLE, said=_OTHER_WORK, used=(own, other))
    outcome = decide([above(pair[0].interval, 1), less(pair[0].interval, pair[1].interval)])
    told = f"{claim.experiment} {pair[0]}; {claim.against} {pair[1]}{lacking(one.interval for one in pair if one)}"
    return ClaimFinding(outcome=outcome, said=told, used=(own, other))


def wider(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Networks of more weights than the paper's, on the same rows, gain at least `KEPT` as much as it does."""
    for own in found:
        others = [one for one in found if _is_wider(one, own)]
        if others:
            break
    else:
        return ClaimFinding(
            outcome=NOT_MEASURED,
            said="needs one data set with a network of the paper and with a larger one (MODEL=module:function)",
        )
    over, count = own.counts[0], own.counts[-1]
    base = ratio(own.launches, over, count)
    ratios = [ratio(one.launches, over, count) for one in others]
    known = [one for one in ratios if one]
    if base is None or not known:
        return ClaimFinding(outcome=NOT_COMPARABLE, said=_OTHER_WORK, used=(own, *others))
    part = base.interval.scaled(KEPT) if base.interval else None
    parts = [above(base.interval, 1), *(less(part, one.interval) for one in known)]
    told = f"{own.parameters:,} weights: {base}; " + "; ".join(
        f"{other.parameters:,}: {one.value:.2f} ({numbers.ratio_span(one.interval)})"
        for other, one in zip(others, ratios, strict=True)
        if one
    )
    said = f"{told}{lacking([base.interval, *(one.interval for one in known)])}"
    return ClaimFinding(outcome=decide(parts), said=said, used=(own, *others))


def _is_wider(one: ClaimEvidence, own: ClaimEvidence) -> bool:
    """Tell whether `one` trained a larger network than `own`, one of the paper's, with the same rows and settings."""
    same = all(
        getattr(one.workload, field) == getattr(own.workload, field)
        for field in ("dataset", "sync", "batch_per_rank", "global_batch")
    )
    counts = set(own.counts[:1] + own.counts[-1:])
    return (
        same
        and ":" not in own.workload.model
        and len(counts) > 1
        and counts <= set(one.counts)
        and one.rows == own.rows
        and one.parameters > own.parameters
    )
