"""The rules that judge claims: each is a function of the claim and of the sweeps that compare with it, best first.

Rules about curves judge at the claim's own base and count; what the texts say in words names no counts and is judged
from the fewest to the most ranks that a sweep has. A statement is true, false, or open (None) by its 95 % interval: a
printed number holds where all of the interval lies within `NEAR` of it, and not where none of it does. What is open is
said with the one thing that is missing.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from harness.analysis import numbers
from harness.analysis.accuracy_times import times_to_accuracy
from harness.analysis.comparison import comparable
from harness.analysis.inference import (
    FEWEST_BLOCKS,
    FEWEST_LAUNCHES,
    LEVEL,
    Interval,
    median_interval,
    percentiles,
    ratio_over_blocks,
    resamples,
)
from harness.analysis.scaling import scale
from harness.claims.claim_evidence import ClaimEvidence
from harness.schema.claim import Claim
from harness.schema.sync import find_policy

CONFIRMED = "confirmed"
REFUTED = "refuted"
IN_LINE = "in line with the prediction"
NOT_IN_LINE = "not in line with the prediction"
UNKNOWN = "cannot be said"
ERRATUM = "printed wrong in the paper"

NEAR = 0.1  # of a printed number: this far from it a measured one is the same
KEPT = 0.9  # an improvement of at least this part of another is kept
MINOR = 0.05  # of the training time
ALIKE = 0.9  # a cost that falls by less than a tenth does not fall
SAME_LOSS = 0.01  # relative difference of final training losses: beyond it other weights were found
_READING = ["load_s", "distribute_s", "compile_s"]  # what a launch does before training, beside its imports


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimFinding:
    """An outcome, why in one sentence without its point, and the sweeps that it rests on.

    `missing` is the one thing without which it cannot be said, empty where it can.
    """

    outcome: str
    said: str
    used: tuple[ClaimEvidence, ...] = ()
    missing: str = ""

    def __str__(self) -> str:
        lack = f"missing: {self.missing}" if self.missing else ""
        return f"{self.outcome}: {'; '.join(filter(None, (self.said, lack)))}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CountRatio:
    """How many times as much `value` is on `count` ranks as on `over`, with its interval where there is one.

    Of a `predicted` one only the interval is meant.
    """

    over: int
    count: int
    value: float
    interval: Interval | None
    predicted: bool = False

    def __str__(self) -> str:
        where = f"on {numbers.ranks(self.count)} over {self.over}"
        if self.predicted:
            return f"predicted {numbers.ratio_span(self.interval)} {where}"
        span = f" (95 % interval {numbers.ratio_span(self.interval)})" if self.interval else ""
        return f"{self.value:.2f}{span} {where}"


def count_ratio(
    one: ClaimEvidence, over: int, count: int, column: str = "seconds", launches: pd.DataFrame | None = None
) -> CountRatio | None:
    """Return `column` of the median launch on `over` ranks over that on `count`; None where the work differs.

    Of `launches` that have more columns than those of `one`. Rounds of turns are of `seconds` only. What is predicted
    is of epochs.
    """
    if one.foreseen:
        band = one.foreseen.ratio(over, count)
        return CountRatio(over=over, count=count, value=math.sqrt(band.low * band.high), interval=band, predicted=True)
    frame = one.launches if launches is None else launches
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
    """Tell whether all of `interval` lies above `limit`, or none of it; None where it holds the limit or is missing."""
    if interval is None or interval.low <= limit <= interval.high:
        return None
    return interval.low > limit


def less(one: Interval | None, other: Interval | None) -> bool | None:
    """Tell whether `one` lies below `other`, or above it; None where they overlap or one is missing."""
    if one is None or other is None or (one.low <= other.high and other.low <= one.high):
        return None
    return one.high < other.low


def near(value: float, reading: float = 0.0) -> Interval:
    """Return what a measured ratio may be where a printed one holds, which was read off a chart within `reading`."""
    return Interval(low=value * (1 - NEAR) - reading, high=value * (1 + NEAR) + reading)


def within(interval: Interval | None, limits: Interval) -> bool | None:
    """Tell whether all of `interval` lies within `limits`, or none of it; None where a part does or it is missing."""
    if interval is None:
        return None
    outside = interval.high < limits.low or interval.low > limits.high
    return False if outside else True if limits.low <= interval.low and interval.high <= limits.high else None


def decide(
    parts: Iterable[bool | None], said: str, *used: ClaimEvidence, rests: Iterable[Interval | None]
) -> ClaimFinding:
    """Return the finding on a claim that says all of `parts`: one that fails refutes it. `rests`: their intervals."""
    known = list(parts)
    outcome = REFUTED if False in known else UNKNOWN if None in known or not known else CONFIRMED
    missing = "launches enough for a narrower interval"
    if None in list(rests):
        missing = f"an interval, which needs {FEWEST_LAUNCHES} launches of each, or {FEWEST_BLOCKS} in turns"
    return ClaimFinding(outcome=outcome, said=said, used=used, missing=missing if outcome == UNKNOWN else "")


def _missing(missing: str, *used: ClaimEvidence, said: str = "") -> ClaimFinding:
    return ClaimFinding(outcome=UNKNOWN, said=said, used=used, missing=missing)


def _other_work(*used: ClaimEvidence) -> ClaimFinding:
    return _missing("points that did the same work", *used)


def _negated(found: bool | None) -> bool | None:
    return None if found is None else not found


def speedup(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """An epoch is `value` times as fast on `count` units as on `base`; without a value: faster."""
    one = found[0]
    return _size(claim, one, count_ratio(one, claim.base, claim.count))


def progress(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """In the same time `count` units train `value` times as many rows as `base` units do."""
    one = found[0]
    if one.workload.seconds is None or one.foreseen:
        return speedup(claim, found)
    trained = one.launches["rows"] * one.launches["epochs"]
    launches = one.launches.assign(per_row=one.launches["trained_s"] / trained)
    return _size(claim, one, count_ratio(one, claim.base, claim.count, "per_row", launches))


def _size(claim: Claim, one: ClaimEvidence, measured: CountRatio | None) -> ClaimFinding:
    """Direction and size by the interval: a point alone says neither."""
    if measured is None:
        return _other_work(one)
    interval, limits = measured.interval, near(claim.value, claim.reading) if claim.value is not None else None
    gain, held = above(interval, 1), within(interval, limits) if limits else True
    said = str(measured)
    if gain is False:
        said += ", slower than on the base"
    elif held is False and claim.value is not None:
        said += f", {'less' if measured.value < claim.value else 'more'} than claimed"
    said += f"; the claim holds from {limits.low:.2f} to {limits.high:.2f}" if limits else ""
    return decide([gain, held], said, one, rests=[interval])


def gains(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Every step up from `base` to `count` units is faster than the one before."""
    one = found[0]
    counts = [count for count in one.counts if claim.base <= count <= claim.count]
    steps = [count_ratio(one, over, count) for over, count in pairwise(counts)]
    known = [step for step in steps if step]
    if len(known) < len(steps):
        return _other_work(one)
    parts = [above(step.interval, 1) for step in known]
    return decide(parts, "; ".join(map(str, known)), one, rests=[step.interval for step in known])


def tapers(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """From `at` units on the curve is less steep than before: log(gain) over log(units), of the steps on its two sides.

    Confirmed where the two intervals are apart, which is stricter than a test of their difference.
    """
    one = found[0]
    before = [count for count in one.counts if claim.base <= count < claim.at]
    if claim.at not in one.counts or not before:
        return _missing(f"launches on {claim.at} {claim.units} and fewer", one, said=measured_on(one))
    steps = [count_ratio(one, before[-1], claim.at), count_ratio(one, claim.at, claim.count)]
    known = [step for step in steps if step]
    if len(known) < len(steps):
        return _other_work(one)
    slopes = [_slope(step) for step in known]
    parts = [above(known[0].interval, 1), less(slopes[1], slopes[0])]
    return decide(parts, "; then ".join(map(str, known)), one, rests=slopes)


def measured_on(one: ClaimEvidence) -> str:
    """Return the rank counts that were measured, in words."""
    return f"measured on {', '.join(map(str, one.counts))} {'GPUs' if one.gpus else 'ranks'}"


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
        return _missing(f"{missing} on {claim.base} and {claim.count} {claim.units} too")
    pair = [count_ratio(one, claim.base, claim.count) for one in (own, other)]
    if pair[0] is None or pair[1] is None:
        return _other_work(own, other)
    rests = [pair[0].interval, pair[1].interval]
    words = f"{claim.experiment} {pair[0]}; {claim.against} {pair[1]}"
    return decide([above(rests[0], 1), less(*rests)], words, own, other, rests=rests)


def wider(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Networks of more weights than the paper's, on the same rows, gain at least `KEPT` as much as it does."""
    for own in found:
        others = [one for one in found if _is_wider(one, own)]
        if others:
            break
    else:
        return _missing("a network of the paper and a larger one (MODEL=module:function) on the same rows")
    over, count = own.counts[0], own.counts[-1]
    base = count_ratio(own, over, count)
    ratios = [count_ratio(one, over, count) for one in others]
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
    return decide(parts, words, own, *others, rests=[base.interval, *(one.interval for one in known)])


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
            reached, number = int((group["whole"] <= claim.seconds).sum()), len(group)
            own = launches.loc[group["run"]]
            trained = float((own["trained_s"] + before[group["run"]]).min())
            top = f"{numbers.percent(float(own['test_accuracy'].median()), 1)} after the last epoch"
            said = f"reached by {reached} of {numbers.plural(number, 'launch')} on {numbers.ranks(ranks)}, {top}"
            said += f"; the shortest trained for {numbers.seconds(trained)}"
            if reached == number:
                said = f"reached in {numbers.seconds(float(group['whole'].median()))} ({said})"
            missing = f"{FEWEST_LAUNCHES - number} more launches" if number < FEWEST_LAUNCHES else ""
            if not missing and 0 < reached < number:
                missing = "launches that agree"
            if not missing and not reached and trained < claim.seconds:
                missing = f"launches that train for {numbers.seconds(claim.seconds)}"
            outcome = UNKNOWN if missing else CONFIRMED if reached else REFUTED
            finding = ClaimFinding(outcome=outcome, said=said, used=(one,), missing=missing)
            if outcome == CONFIRMED:
                return finding
            if best is None or (best.outcome, outcome) == (REFUTED, UNKNOWN):
                best = finding
    assert best is not None
    return best


def longer(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """More epochs gain more: an epoch is faster on more ranks by more than what a launch does before it."""
    one = found[0]
    launches = one.launches.assign(before=one.launches[["import_s", *_READING]].sum(axis=1))
    over, count = one.counts[0], one.counts[-1]
    epoch, before = count_ratio(one, over, count), count_ratio(one, over, count, "before", launches)
    if epoch is None or before is None:
        return _other_work(one)
    medians = launches.groupby("ranks")[["before", "seconds"]].median()
    epochs = int(launches["epochs"].median())
    whole = {number: medians["before"] + number * medians["seconds"] for number in (1, epochs)}
    words = ", ".join(
        f"{whole[number][over] / whole[number][count]:.2f} with {numbers.plural(number, 'epoch')}" for number in whole
    )
    span = f" ({numbers.ratio_span(before.interval)})" if before.interval else ""
    said = f"an epoch gains {epoch}, what comes before it {before.value:.2f}{span}; a whole launch {words}"
    return decide([less(before.interval, epoch.interval)], said, one, rests=[before.interval, epoch.interval])


def reading(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """What reading by rank 0 takes longer than reading by all is less than `MINOR` of the training time.

    Both are samples, of one order of launches: what reading takes differs from launch to launch either way.
    """
    pairs = [(own, other) for own in found for other in found if _differ_in_reading(own, other)]
    if not pairs:
        return _missing("DISTRIBUTION=scatter and parallel, on the same rows and several ranks")
    own, other = pairs[0]
    ranks = max(set(own.counts) & set(other.counts))
    frames = [one.launches[one.launches["ranks"] == ranks] for one in (other, own)]
    base, group = (frame.assign(reading=frame["load_s"] + frame["distribute_s"]) for frame in frames)
    both = comparable(base, group)
    if both is None:
        return _missing("both in one session", own, other)
    parallel, scatter, few = both.base, both.group, min(len(both.base), len(both.group))
    drawn = resamples(len(parallel), len(scatter), paired=both.paired)
    usual, longer, trained = (
        np.median(frame[column].to_numpy()[places], axis=1)
        for frame, column, places in (
            (parallel, "reading", drawn[0]),
            (scatter, "reading", drawn[1]),
            (scatter, "trained_s", drawn[1]),
        )
    )
    interval = percentiles((longer - usual) / trained, few) if few >= FEWEST_LAUNCHES else None
    extra = float(scatter["reading"].median() - parallel["reading"].median())
    span = f", {numbers.percent(interval.low, 1)} to {numbers.percent(interval.high, 1)} of it" if interval else ""
    said = (
        f"{numbers.seconds(max(0.0, extra))} more than reading in parallel on {numbers.ranks(ranks)}, "
        f"sending alone {numbers.seconds(float(scatter['distribute_s'].median()))}, beside "
        f"{numbers.seconds(float(scatter['trained_s'].median()))} of training{span}"
    )
    return decide([_negated(above(interval, MINOR))], said, own, other, rests=[interval])


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
        return _missing("a sweep with SYNC=weights:epoch: one exchange in an epoch")
    one = next((one for one in once if sum(count > 1 for count in one.counts) > 1), once[0])
    counts = [count for count in one.counts if count > 1]
    if len(counts) < 2:
        return _missing("two rank counts above 1", one, said=measured_on(one))
    over, count = counts[0], counts[-1]
    work, wire = (count_ratio(one, over, count, column) for column in ("compute_seconds", "wire_seconds"))
    if work is None or wire is None:
        return _other_work(one)
    falls = wire.interval.scaled(ALIKE) if wire.interval else None
    parts = [above(work.interval, ALIKE * count / over), _negated(above(falls, 1))]
    said = (
        f"computation falls by {work}, ideal {count / over:g}; the exchange of {one.runs[0].weights.bytes:,} bytes by "
        f"{wire.value:.2f} ({numbers.ratio_span(wire.interval)})"
    )
    return decide(parts, said, one, rests=[work.interval, wire.interval])


def equivalent(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """With the same batches at every rank count, averaged weights end with the training loss of the fewest ranks."""
    same = [one for one in found if one.workload.global_batch is not None and len(one.counts) > 1]
    own = next((one for one in same if not find_policy(one.workload.sync).shares_gradients), None)
    if own is None:
        return _missing("SYNC=weights:K with GLOBAL_BATCH=, the same batches at every rank count")
    other = next((one for one in same if one.workload.sync == "gradients" and one.experiment == own.experiment), None)
    used = (own, other) if other else (own,)
    words = [f"{one.workload.sync} ends {numbers.percent(float(_apart(one).median()), 2)} from it" for one in used]
    interval = median_interval(_apart(own))
    said = f"training loss on {numbers.ranks(own.counts[-1])} against that on {own.counts[0]}: {', '.join(words)}"
    return decide([_negated(above(interval, SAME_LOSS))], said, *used, rests=[interval])


def _apart(one: ClaimEvidence) -> pd.Series:
    """Return how far the final training loss on most ranks is from that on the fewest, of each repeat: of one seed."""
    losses = one.launches.pivot_table(index="repeat", columns="ranks", values="train_loss")
    return (losses[one.counts[-1]] / losses[one.counts[0]] - 1).abs().dropna()


def servers(rates: pd.DataFrame) -> ClaimFinding:
    """Training with parameter servers is slower than `gradients` on the same cores, on every workload.

    `rates`: a row for every block of a bench, with the rows per second of either; its error is shared over workloads.
    """
    if rates.empty:
        return _missing("`make bench` with the contender ParameterServerStrategy")
    words, rests = [], []
    groups = rates.groupby("workload", sort=False)
    for workload, blocks in groups:
        logs = np.log(blocks["servers"] / blocks["gradients"])
        over = ratio_over_blocks(logs.tolist(), level=1 - (1 - LEVEL) / len(groups))
        rests.append(over.interval if over else None)
        span = f" ({numbers.ratio_span(over.interval)})" if over else ""
        words.append(f"{workload} {math.exp(logs.mean()):.2f}{span}")
    said = f"of the rows per second of gradients: {', '.join(words)}"
    return decide([_negated(above(one, 1)) for one in rests], said, rests=rests)


Rule = Callable[[Claim, Sequence[ClaimEvidence]], ClaimFinding]

RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        speedup,
        progress,
        gains,
        tapers,
        modest,
        wider,
        accuracy,
        longer,
        reading,
        volume,
        equivalent,
    )
}
SERVERS = servers.__name__  # judged by a bench
