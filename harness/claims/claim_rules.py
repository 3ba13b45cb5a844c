"""The rules that judge claims: each is a function of the claim and of the sweeps that compare with it, best first.

Rules about curves judge at the claim's own base and count; what the texts say in words names no counts and is judged
from the fewest to the most ranks that a sweep has. A statement is true, false, or open (None) by its 95 % interval.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from harness.analysis import numbers
from harness.analysis.learning import times_to_accuracy
from harness.analysis.scaling import scale
from harness.analysis.stats import NEEDED, Interval, median_interval
from harness.claims.claim_evidence import ClaimEvidence
from harness.schema.claim import Claim
from harness.schema.sync import find_policy

CONFIRMED = "confirmed"
REFUTED = "refuted"
INCONCLUSIVE = "inconclusive"
NOT_COMPARABLE = "not comparable"
NOT_MEASURED = "not measured"
ERRATUM = "erratum"

JUDGED = (CONFIRMED, REFUTED, INCONCLUSIVE)

WIDEST = 0.5  # an interval longer than this part of the claimed value holds too much to confirm it
KEPT = 0.9  # an improvement of at least this part of another is kept
MINOR = 0.05  # of the training time
ALIKE = 0.9  # a cost that falls by less than a tenth does not fall
SAME_LOSS = 0.01  # relative difference of final training losses: beyond it other weights were found
_OTHER_WORK = "the points did not do the same work"
_READING = ["load_s", "distribute_s", "compile_s"]  # what a launch does before training, beside its imports


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


def count_ratio(launches: pd.DataFrame, over: int, count: int, column: str = "seconds") -> CountRatio | None:
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


def _missing(said: str, *used: ClaimEvidence) -> ClaimFinding:
    return ClaimFinding(outcome=NOT_MEASURED, said=said, used=used)


def _other_work(*used: ClaimEvidence) -> ClaimFinding:
    return ClaimFinding(outcome=NOT_COMPARABLE, said=_OTHER_WORK, used=used)


def _negated(found: bool | None) -> bool | None:
    return None if found is None else not found


def lacking(intervals: Iterable[Interval | None]) -> str:
    """Return what is to be said where an interval is missing, an empty text where none is."""
    return f"; an interval needs {NEEDED} launches of each" if None in list(intervals) else ""


def speedup(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """An epoch is `value` times as fast on `count` units as on `base`; without a value: faster."""
    one = found[0]
    return _size(claim, one, count_ratio(one.launches, claim.base, claim.count))


def progress(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """In the same time `count` units train `value` times as many rows as `base` units do."""
    one = found[0]
    if one.workload.seconds is None:
        return speedup(claim, found)
    trained = one.launches["rows"] * one.launches["epochs"]
    launches = one.launches.assign(per_row=one.launches["trained_s"] / trained)
    return _size(claim, one, count_ratio(launches, claim.base, claim.count, "per_row"))


def _size(claim: Claim, one: ClaimEvidence, measured: CountRatio | None) -> ClaimFinding:
    """Direction and size by the interval: a point alone says neither."""
    if measured is None:
        return _other_work(one)
    interval, held = measured.interval, None
    gain = above(interval, 1)
    if interval is not None and claim.value is not None:
        inside = interval.low - claim.reading <= claim.value <= interval.high + claim.reading
        narrow = interval.high - interval.low <= WIDEST * claim.value
        held = False if not inside else True if narrow else None
    said = f"{measured}{lacking([interval])}"
    if gain is False:
        said += ", slower than on the base"
    elif held is False and claim.value is not None:
        said += f", {'less' if measured.value < claim.value else 'more'} than claimed"
    parts = [gain] if claim.value is None else [gain, held]
    return ClaimFinding(outcome=decide(parts), said=said, used=(one,))


def gains(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Every step up from `base` to `count` units is faster than the one before."""
    one = found[0]
    counts = [count for count in one.counts if claim.base <= count <= claim.count]
    steps = [count_ratio(one.launches, over, count) for over, count in pairwise(counts)]
    known = [step for step in steps if step]
    if len(known) < len(steps):
        return _other_work(one)
    parts = [above(step.interval, 1) for step in known]
    words = "; ".join(map(str, known))
    return ClaimFinding(outcome=decide(parts), said=f"{words}{lacking(step.interval for step in known)}", used=(one,))


def tapers(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """From `at` units on the curve is less steep than before: log(gain) over log(units), of the steps on its two sides.

    Confirmed where the two intervals are apart, which is stricter than a test of their difference.
    """
    one = found[0]
    before = [count for count in one.counts if claim.base <= count < claim.at]
    if claim.at not in one.counts or not before:
        counts = ", ".join(map(str, one.counts))
        return _missing(f"needs {claim.at} {claim.units} and fewer, measured on {counts}", one)
    steps = [count_ratio(one.launches, before[-1], claim.at), count_ratio(one.launches, claim.at, claim.count)]
    known = [step for step in steps if step]
    if len(known) < len(steps):
        return _other_work(one)
    slopes = [_slope(step) for step in known]
    outcome = decide([above(known[0].interval, 1), less(slopes[1], slopes[0])])
    words = "; then ".join(map(str, known))
    return ClaimFinding(outcome=outcome, said=f"{words}{lacking(slopes)}", used=(one,))


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
        return _missing(f"needs {missing} on {claim.base} and {claim.count} {claim.units} too")
    pair = [count_ratio(one.launches, claim.base, claim.count) for one in (own, other)]
    if pair[0] is None or pair[1] is None:
        return _other_work(own, other)
    outcome = decide([above(pair[0].interval, 1), less(pair[0].interval, pair[1].interval)])
    words = f"{claim.experiment} {pair[0]}; {claim.against} {pair[1]}{lacking(one.interval for one in pair if one)}"
    return ClaimFinding(outcome=outcome, said=words, used=(own, other))


def wider(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Networks of more weights than the paper's, on the same rows, gain at least `KEPT` as much as it does."""
    for own in found:
        others = [one for one in found if _is_wider(one, own)]
        if others:
            break
    else:
        return _missing("needs one data set with a network of the paper and with a larger one (MODEL=module:function)")
    over, count = own.counts[0], own.counts[-1]
    base = count_ratio(own.launches, over, count)
    ratios = [count_ratio(one.launches, over, count) for one in others]
    known = [one for one in ratios if one]
    if base is None or not known:
        return _other_work(own, *others)
    part = base.interval.scaled(KEPT) if base.interval else None
    parts = [above(base.interval, 1), *(less(part, one.interval) for one in known)]
    words = f"{own.parameters:,} weights: {base}; " + "; ".join(
        f"{other.parameters:,}: {one.value:.2f} ({numbers.ratio_span(one.interval)})"
        for other, one in zip(others, ratios, strict=True)
        if one
    )
    said = f"{words}{lacking([base.interval, *(one.interval for one in known)])}"
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


def accuracy(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Some rank count reaches `value` test accuracy within `seconds`, reading and compiling included, every launch."""
    assert claim.value is not None
    best: ClaimFinding | None = None
    for one in found:
        times = times_to_accuracy(one.epochs, claim.value - claim.reading)
        launches = one.launches.set_index("run")
        before = launches[_READING].sum(axis=1)
        times["whole"] = times["seconds"] + times["run"].map(before)
        for ranks in one.counts:
            group = times[times["ranks"] == ranks]
            reached = int((group["whole"] <= claim.seconds).sum())
            own = launches.loc[group["run"]]
            known = f"{reached} of {numbers.plural(len(group), 'launch')} on {numbers.ranks(ranks)}"
            top = f"{numbers.percent(float(own['test_accuracy'].median()), 1)} after the last epoch"
            trained = float((own["trained_s"] + before[group["run"]]).min())
            if reached == len(group):
                took = numbers.seconds(float(group["whole"].median()))
                said = f"reached in {took} ({known})"
                return ClaimFinding(outcome=CONFIRMED, said=said, used=(one,))
            outcome = REFUTED if trained >= claim.seconds and not reached else INCONCLUSIVE
            said = f"reached by {known}, {top}; the shortest trained for {numbers.seconds(trained)}"
            if best is None or outcome == INCONCLUSIVE:
                best = ClaimFinding(outcome=outcome, said=said, used=(one,))
    assert best is not None
    return best


def longer(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """More epochs gain more: an epoch is faster on more ranks by more than what a launch does before it."""
    one = found[0]
    launches = one.launches.assign(before=one.launches[["import_s", *_READING]].sum(axis=1))
    over, count = one.counts[0], one.counts[-1]
    epoch, before = count_ratio(launches, over, count), count_ratio(launches, over, count, "before")
    if epoch is None or before is None:
        return _missing(_OTHER_WORK, one)
    medians = launches.groupby("ranks")[["before", "seconds"]].median()
    epochs = int(launches["epochs"].median())
    whole = {number: medians["before"] + number * medians["seconds"] for number in (1, epochs)}
    words = ", ".join(
        f"{whole[number][over] / whole[number][count]:.2f} with {numbers.plural(number, 'epoch')}" for number in whole
    )
    span = f" ({numbers.ratio_span(before.interval)})" if before.interval else ""
    said = (
        f"an epoch gains {epoch}, what comes before it {before.value:.2f}{span}; "
        f"a whole launch {words}{lacking([epoch.interval, before.interval])}"
    )
    return ClaimFinding(outcome=decide([less(before.interval, epoch.interval)]), said=said, used=(one,))


def reading(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """What reading by rank 0 takes longer than reading by all is less than `MINOR` of the training time."""
    pairs = [(own, other) for own in found for other in found if _differ_in_reading(own, other)]
    if not pairs:
        return _missing("needs DISTRIBUTION=scatter and parallel, on the same rows and several ranks")
    own, other = pairs[0]
    ranks = max(set(own.counts) & set(other.counts))
    scatter, parallel = (one.launches[one.launches["ranks"] == ranks] for one in (own, other))
    usual = float((parallel["load_s"] + parallel["distribute_s"]).median())
    extra = scatter["load_s"] + scatter["distribute_s"] - usual
    interval = median_interval(extra / scatter["trained_s"])
    said = (
        f"{numbers.seconds(max(0.0, float(extra.median())))} more than reading in parallel on {numbers.ranks(ranks)}, "
        f"sending alone {numbers.seconds(float(scatter['distribute_s'].median()))}, beside "
        f"{numbers.seconds(float(scatter['trained_s'].median()))} of training{lacking([interval])}"
    )
    return ClaimFinding(outcome=decide([_negated(above(interval, MINOR))]), said=said, used=(own, other))


def _differ_in_reading(own: ClaimEvidence, other: ClaimEvidence) -> bool:
    """Tell whether in `own` rank 0 reads for all, in `other` every rank for itself, on the same rows and ranks."""
    return (
        (own.workload.distribution, other.workload.distribution) == ("scatter", "parallel")
        and (own.experiment, own.rows) == (other.experiment, other.rows)
        and max(set(own.counts) & set(other.counts), default=1) > 1
    )


def volume(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """From p to q ranks the computation falls by q/p, the exchange does not; both within a tenth."""
    once = [one for one in found if find_policy(one.workload.sync).period is None]
    if not once:
        return _missing("needs a sweep with SYNC=weights:epoch: one exchange in an epoch")
    one = next((one for one in once if sum(count > 1 for count in one.counts) > 1), once[0])
    counts = [count for count in one.counts if count > 1]
    if len(counts) < 2:
        return _missing("needs two rank counts above 1", one)
    over, count = counts[0], counts[-1]
    work, wire = (count_ratio(one.launches, over, count, column) for column in ("compute_seconds", "wire_seconds"))
    if work is None or wire is None:
        return _missing(_OTHER_WORK, one)
    falls = wire.interval.scaled(ALIKE) if wire.interval else None
    outcome = decide([above(work.interval, ALIKE * count / over), _negated(above(falls, 1))])
    said = (
        f"computation falls by {work}, ideal {count / over:g}; the exchange of {one.runs[0].weights.bytes:,} bytes by "
        f"{wire.value:.2f} ({numbers.ratio_span(wire.interval)}){lacking([work.interval, wire.interval])}"
    )
    return ClaimFinding(outcome=outcome, said=said, used=(one,))


def equivalent(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """With the same batches at every rank count, averaged weights end with the training loss of the fewest ranks."""
    same = [one for one in found if one.workload.global_batch is not None and len(one.counts) > 1]
    own = next((one for one in same if not find_policy(one.workload.sync).shares_gradients), None)
    if own is None:
        return _missing("needs SYNC=weights:K with GLOBAL_BATCH=, the same batches at every rank count")
    other = next((one for one in same if one.workload.sync == "gradients" and one.experiment == own.experiment), None)
    used = (own, other) if other else (own,)
    words = [f"{one.workload.sync} ends {numbers.percent(float(_apart(one).median()), 2)} from it" for one in used]
    interval = median_interval(_apart(own))
    said = f"training loss on {numbers.ranks(own.counts[-1])} against that on {own.counts[0]}: {', '.join(words)}"
    outcome = decide([_negated(above(interval, SAME_LOSS))])
    return ClaimFinding(outcome=outcome, said=f"{said}{lacking([interval])}", used=used)


def _apart(one: ClaimEvidence) -> pd.Series:
    """Return how far the final training loss on most ranks is from that on the fewest, of each repeat: of one seed."""
    losses = one.launches.pivot_table(index="repeat", columns="ranks", values="train_loss")
    return (losses[one.counts[-1]] / losses[one.counts[0]] - 1).abs().dropna()


def servers(claim: Claim, rates: pd.DataFrame) -> ClaimFinding:
    """Training with parameter servers is slower than `gradients` on the same cores.

    `rates`: a row for every block of a bench, with the rows per second of either.
    """
    if rates.empty:
        return _missing("needs `make bench` with the contender ParameterServerStrategy")
    ratios = np.asarray(rates["servers"] / rates["gradients"])
    interval: Interval | None = median_interval(ratios)
    said = (
        f"{np.median(ratios):.2f} of the rows per second ({ratios.min():.2f} to {ratios.max():.2f}), the median of "
        f"{rates['workload'].nunique()} workloads and {len(rates)} blocks in all{lacking([interval])}"
    )
    return ClaimFinding(outcome=decide([_negated(above(interval, 1))]), said=said)


Rule = Callable[[Claim, Sequence[ClaimEvidence]], ClaimFinding]

RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        speedup, progress, gains, tapers, modest, wider, accuracy, longer, reading, volume, equivalent,
    )
}  # fmt: skip
SERVERS = servers.__name__  # judged by a bench
