"""Rules on curves: what a claim says of speedups at its own base and count, or of larger networks."""

import math
from collections.abc import Sequence
from itertools import pairwise

from harness.analysis.confidence_intervals import Interval
from harness.claims.claim_evidence import ClaimEvidence
from harness.claims.claim_verdict import (
    ClaimFinding,
    CountRatio,
    above,
    count_ratio,
    finding_on_parts,
    less,
    measured_on,
    near,
    other_work,
    unknown_for,
    within,
)
from harness.schema.claim import Claim
from harness.schema.option import is_own_code

KEPT = 0.9  # an improvement of at least this part of another is kept


def speedup(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """An epoch is `value` times as fast on `count` units as on `base`; without a value: faster."""
    best = evidence[0]
    return _size(claim, best, count_ratio(best, claim.base, claim.count))


def rows_in_equal_time(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """In the same time `count` units train `value` times as many rows as `base` units do."""
    best = evidence[0]
    if best.workload.seconds is None:
        return speedup(claim, evidence)
    rows = best.launches["rows"] * best.launches["epochs"]
    launches = best.launches.assign(per_row=best.launches["trained_s"] / rows)
    return _size(claim, best, count_ratio(best, claim.base, claim.count, "per_row", launches))


def _size(claim: Claim, evidence: ClaimEvidence, measured: CountRatio | None) -> ClaimFinding:
    """Return the finding by direction and size of the interval, of which a point alone says neither."""
    if measured is None:
        return other_work(evidence)
    limits = near(claim.value, claim.reading) if claim.value is not None else None
    is_faster = above(measured.interval, 1)
    is_near = within(measured.interval, limits) if limits else True
    reason = str(measured)
    if is_faster is False:
        reason += ", slower than on the base"
    elif is_near is False and claim.value is not None:
        reason += f", {'less' if measured.value < claim.value else 'more'} than claimed"
    reason += f"; the claim holds from {limits.low:.2f} to {limits.high:.2f}" if limits else ""
    return finding_on_parts([is_faster, is_near], reason, evidence, rests=[measured.interval])


def every_step_gains(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Every step up from `base` to `count` units is faster than the one before."""
    best = evidence[0]
    counts = [count for count in best.counts if claim.base <= count <= claim.count]
    steps = _ratios(best, list(pairwise(counts)))
    if steps is None:
        return other_work(best)
    parts = [above(step.interval, 1) for step in steps]
    return finding_on_parts(parts, "; ".join(map(str, steps)), best, rests=[step.interval for step in steps])


def curve_flattens(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """From `at` units on the curve is less steep than before: log(gain) over log(units), of the steps on its two sides.

    Confirmed where the two intervals are apart, which is stricter than a test of their difference.
    """
    best = evidence[0]
    before = [count for count in best.counts if claim.base <= count < claim.at]
    if claim.at not in best.counts or not before:
        return unknown_for(f"launches on {claim.at} {claim.units} and fewer", best, reason=measured_on(best))
    steps = _ratios(best, [(before[-1], claim.at), (claim.at, claim.count)])
    if steps is None:
        return other_work(best)
    slopes = [_slope(step) for step in steps]
    parts = [above(steps[0].interval, 1), less(slopes[1], slopes[0])]
    return finding_on_parts(parts, "; then ".join(map(str, steps)), best, rests=slopes)


def _ratios(evidence: ClaimEvidence, steps: Sequence[tuple[int, int]]) -> list[CountRatio] | None:
    """Return the ratio of each of `steps` from a count to another, None where the work of any differs."""
    ratios = []
    for over, count in steps:
        ratio = count_ratio(evidence, over, count)
        if ratio is None:
            return None
        ratios.append(ratio)
    return ratios


def _slope(step: CountRatio) -> Interval | None:
    if step.interval is None:
        return None
    units = math.log(step.count / step.over)
    return Interval(low=math.log(step.interval.low) / units, high=math.log(step.interval.high) / units)


def gains_less_than(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """The claim's own curve gains, and less than that of the experiment it is set `against`."""
    with_both_counts = [sweep for sweep in evidence if {claim.base, claim.count} <= set(sweep.counts)]
    smaller = next((sweep for sweep in with_both_counts if sweep.experiment == claim.experiment), None)
    larger = next((sweep for sweep in with_both_counts if sweep.experiment == claim.against), None)
    if smaller is None or larger is None:
        missing = claim.against if smaller else claim.experiment
        return unknown_for(f"{missing} on {claim.base} and {claim.count} {claim.units} too")
    gain = count_ratio(smaller, claim.base, claim.count)
    larger_gain = count_ratio(larger, claim.base, claim.count)
    if gain is None or larger_gain is None:
        return other_work(smaller, larger)
    rests = [gain.interval, larger_gain.interval]
    parts = [above(gain.interval, 1), less(gain.interval, larger_gain.interval)]
    reason = f"{claim.experiment} {gain}; {claim.against} {larger_gain}"
    return finding_on_parts(parts, reason, smaller, larger, rests=rests)


def larger_network_gains_as_much(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Networks of more weights than the paper's, on the same rows, gain at least `KEPT` as much as it does."""
    paper, larger = _paper_and_larger_networks(evidence)
    if paper is None:
        return unknown_for("a network of the paper and a larger one (MODEL=module:function) on the same rows")
    over = paper.counts[0]
    count = paper.counts[-1]
    base = count_ratio(paper, over, count)
    gains = [(sweep, count_ratio(sweep, over, count)) for sweep in larger]
    compared = [(sweep, gain) for sweep, gain in gains if gain]
    if base is None or not compared:
        return other_work(paper, *larger)
    least = base.interval.scaled(KEPT) if base.interval else None
    parts = [above(base.interval, 1), *(less(least, gain.interval) for _, gain in compared)]
    words = [f"{sweep.parameters:,}: {gain.short}" for sweep, gain in compared]
    reason = f"{paper.parameters:,} weights: {base}; {'; '.join(words)}"
    rests = [base.interval, *(gain.interval for _, gain in compared)]
    return finding_on_parts(parts, reason, paper, *larger, rests=rests)


def _paper_and_larger_networks(
    evidence: Sequence[ClaimEvidence],
) -> tuple[ClaimEvidence | None, list[ClaimEvidence]]:
    """Return the first network of the paper beside which larger ones trained, and these; None without any."""
    for paper in evidence:
        larger = [sweep for sweep in evidence if _is_larger(sweep, paper)]
        if larger:
            return paper, larger
    return None, []


def _is_larger(sweep: ClaimEvidence, paper: ClaimEvidence) -> bool:
    """Say whether `sweep` trained a larger network than `paper`, one of the paper's, on the same rows and settings."""
    same_settings = all(
        getattr(sweep.workload, field) == getattr(paper.workload, field)
        for field in ("dataset", "sync", "batch_per_rank", "global_batch")
    )
    counts = set(paper.counts[:1] + paper.counts[-1:])
    return (
        same_settings
        and not is_own_code(paper.workload.model)
        and len(counts) > 1
        and counts <= set(sweep.counts)
        and sweep.rows == paper.rows
        and sweep.parameters > paper.parameters
    )
