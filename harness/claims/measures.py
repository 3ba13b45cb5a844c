"""What is measured for a claim: a function for each `ClaimMetric`, of the sweeps that ask its question.

A `Measured` is intervals beside what the claim sets them against, in words too; `judgement` alone says what follows.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from harness.analysis import units
from harness.analysis.accuracy_times import times_to_accuracy
from harness.analysis.comparison import comparable, layout_launches
from harness.analysis.confidence_intervals import (
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
from harness.schema.claim import Claim, ClaimMetric
from harness.schema.option import is_own_code
from harness.schema.sync_policies import known_policy

NEAR = 0.1  # of a printed number: this far from it a measured one is the same
ALIKE = 0.9  # a gain of at least this part of another is kept; a cost that falls by less than a tenth does not fall
_BEFORE_TRAINING = ["load_s", "distribute_s", "compile_s"]  # what a launch does before it, beside its imports


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A measured interval and what the claim's relation sets it against; None where launches lack for either."""

    value: Interval | None
    against: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What was measured in one way: its `statements`, in words, and the sweeps `used`.

    Where it could not be measured, `missing` is the one thing that lacks. `point` is the value of the single statement.
    """

    statements: tuple[Statement, ...] = ()
    reason: str = ""
    used: tuple[ClaimEvidence, ...] = ()
    missing: str = ""
    point: float = math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class CountRatio:
    """How many times as much `value` is on `count` ranks as on `over`, with its interval where there is one."""

    over: int
    count: int
    value: float
    interval: Interval | None

    def __str__(self) -> str:
        span = f" (95 % CI {units.ratio_span(self.interval)})" if self.interval else ""
        return f"{self.value:.2f}{span} on {units.ranks(self.count)} over {self.over}"

    @property
    def short(self) -> str:
        """The value with its interval, without the counts."""
        return f"{self.value:.2f} ({units.ratio_span(self.interval)})"


def count_ratio(
    evidence: ClaimEvidence, over: int, count: int, column: str = "seconds", launches: pd.DataFrame | None = None
) -> CountRatio | None:
    """Return the mean `column` of the launches on `over` ranks over that on `count`; None where the work differs.

    It is None too where a launch took no time, which has no ratio. Of `launches` that have more columns than those of
    the `evidence`. Rounds of turns are of `seconds` only.
    """
    frame = evidence.launches if launches is None else launches
    frame = frame[frame["ranks"].isin((over, count))]  # one rank alone exchanges nothing: no ratio has that time below
    if not (frame[column] > 0).all():
        return None
    frame = frame.assign(seconds=frame[column])
    if column != "seconds":
        frame["ran_seconds"] = math.nan
    scaling = scale(frame, base_ranks=over)
    assert scaling is not None
    point = next(point for point in scaling.points if point.ranks == count)
    if point.speedup is None:
        return None
    return CountRatio(over=over, count=count, value=point.speedup, interval=point.speedup_interval)


def exactly(value: float) -> Interval:
    """Return `value` as an interval without width."""
    return Interval(low=value, high=value)


def near(value: float, reading: float = 0.0) -> Interval:
    """Return what a measured ratio may be where a printed one holds, which was read off a chart within `reading`."""
    return Interval(low=value * (1 - NEAR) - reading, high=value * (1 + NEAR) + reading)


def measured_on(evidence: ClaimEvidence) -> str:
    """Return the rank counts that were measured, in words."""
    return f"measured on {', '.join(map(str, evidence.counts))} {'GPUs' if evidence.gpus else 'ranks'}"


def _lack(missing: str, *used: ClaimEvidence, reason: str = "") -> list[Measured]:
    return [Measured(missing=missing, used=used, reason=reason)]


def _more_launches(launches: int) -> str:
    """Return how many launches lack for the interval of a median, which is no mean over blocks; nothing where none."""
    lacking = FEWEST_LAUNCHES - launches
    return f"{lacking} more launches" if lacking > 0 else ""


def _other_work(*used: ClaimEvidence) -> list[Measured]:
    return _lack("points that did the same work", *used)


def _statements(values: Iterable[Interval | None], limit: float) -> tuple[Statement, ...]:
    return tuple(Statement(value=value, against=exactly(limit)) for value in values)


def speedup(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """How many times as fast an epoch is on `count` units as on `base`."""
    best = evidence[0]
    return _size(claim, best, count_ratio(best, claim.base, claim.count))


def rows_in_equal_time(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """How many times as many rows `count` units train in the same time as `base` units do."""
    best = evidence[0]
    if best.workload.seconds is None:
        return speedup(claim, evidence)
    rows = best.launches["rows"] * best.launches["epochs"]
    launches = best.launches.assign(per_row=best.launches["trained_s"] / rows)
    return _size(claim, best, count_ratio(best, claim.base, claim.count, "per_row", launches))


def _size(claim: Claim, evidence: ClaimEvidence, ratio: CountRatio | None) -> list[Measured]:
    if ratio is None:
        return _other_work(evidence)
    against = exactly(claim.limit) if claim.value is None else near(claim.value, claim.reading)
    statement = Statement(value=ratio.interval, against=against)
    return [Measured(statements=(statement,), reason=str(ratio), used=(evidence,), point=ratio.value)]


def speedup_of_each_step(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """How many times as fast every step up from `base` to `count` units is as the one before."""
    best = evidence[0]
    counts = [count for count in best.counts if claim.base <= count <= claim.count]
    steps = _ratios(best, list(pairwise(counts)))
    if steps is None:
        return _other_work(best)
    statements = _statements([step.interval for step in steps], claim.limit)
    return [Measured(statements=statements, reason="; ".join(map(str, steps)), used=(best,))]


def speedup_and_slope(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """The gain up to `at` units, and its slope beside that from there on: log(gain) over log(units).

    Two intervals that are apart are a stricter test than one of their difference.
    """
    best = evidence[0]
    before = [count for count in best.counts if claim.base <= count < claim.at]
    if claim.at not in best.counts or not before:
        return _lack(f"launches on {claim.at} {claim.units} and fewer", best, reason=measured_on(best))
    steps = _ratios(best, [(before[-1], claim.at), (claim.at, claim.count)])
    if steps is None:
        return _other_work(best)
    slopes = [_slope(step) for step in steps]
    statements = (*_statements([steps[0].interval], claim.limit), Statement(value=slopes[0], against=slopes[1]))
    return [Measured(statements=statements, reason="; then ".join(map(str, steps)), used=(best,))]


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


def speedup_beside_another(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """The gain of the claim's own experiment, and that of the one it is set `against`, which is above it."""
    with_both_counts = [sweep for sweep in evidence if {claim.base, claim.count} <= set(sweep.counts)]
    smaller = next((sweep for sweep in with_both_counts if sweep.experiment == claim.experiment), None)
    larger = next((sweep for sweep in with_both_counts if sweep.experiment == claim.against), None)
    if smaller is None or larger is None:
        missing = claim.against if smaller else claim.experiment
        return _lack(f"{missing} on {claim.base} and {claim.count} {claim.units} too")
    gain = count_ratio(smaller, claim.base, claim.count)
    larger_gain = count_ratio(larger, claim.base, claim.count)
    if gain is None or larger_gain is None:
        return _other_work(smaller, larger)
    beside = Statement(value=larger_gain.interval, against=gain.interval)
    reason = f"{claim.experiment} {gain}; {claim.against} {larger_gain}"
    statements = (*_statements([gain.interval], claim.limit), beside)
    return [Measured(statements=statements, reason=reason, used=(smaller, larger))]


def speedup_of_larger_networks(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """The gain of the paper's network, and that of larger ones on the same rows, above `ALIKE` of it."""
    paper, larger = _paper_and_larger_networks(evidence)
    if paper is None:
        return _lack("a network of the paper and a larger one (--model module:function) on the same rows")
    over = paper.counts[0]
    count = paper.counts[-1]
    base = count_ratio(paper, over, count)
    gains = [(sweep, count_ratio(sweep, over, count)) for sweep in larger]
    compared = [(sweep, gain) for sweep, gain in gains if gain]
    if base is None or not compared:
        return _other_work(paper, *larger)
    least = base.interval.scaled(ALIKE) if base.interval else None
    beside = (Statement(value=gain.interval, against=least) for _, gain in compared)
    words = [f"{sweep.parameters:,}: {gain.short}" for sweep, gain in compared]
    reason = f"{paper.parameters:,} weights: {base}; {'; '.join(words)}"
    statements = (*_statements([base.interval], claim.limit), *beside)
    return [Measured(statements=statements, reason=reason, used=(paper, *larger))]


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


def launches_that_reach_an_accuracy(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """The part of the launches that reach `value` test accuracy within `seconds`, reading and compiling included.

    Each rank count of each sweep is one way to reach it.
    """
    return [_reached_on(claim, sweep, ranks) for sweep in evidence for ranks in sweep.counts]


def _reached_on(claim: Claim, sweep: ClaimEvidence, ranks: int) -> Measured:
    """Return the part of the launches of `sweep` on `ranks` ranks that reach it."""
    assert claim.value is not None
    times = times_to_accuracy(sweep.epochs, claim.value - claim.reading)
    times = times[times["ranks"] == ranks]
    launches = sweep.launches.set_index("run").loc[times["run"]]
    before = launches[_BEFORE_TRAINING].sum(axis=1)
    whole = times["seconds"].to_numpy() + before.to_numpy()
    count = len(times)
    reached = int((whole <= claim.seconds).sum())
    trained_s = float((launches["trained_s"] + before).min())
    final = units.percent(float(launches["test_accuracy"].median()), 1)
    reason = (
        f"reached by {reached} of {units.plural(count, 'launch')} on {units.ranks(ranks)}, {final} after the last "
        f"epoch; the shortest trained for {units.seconds(trained_s)}"
    )
    if reached == count:
        reason = f"reached in {units.seconds(float(np.median(whole)))} ({reason})"
    missing = ""
    if count < FEWEST_LAUNCHES:
        missing = _more_launches(count)
    elif 0 < reached < count:
        missing = "launches that agree"
    elif not reached and trained_s < claim.seconds:
        missing = f"launches that train for {units.seconds(claim.seconds)}"
    return Measured(
        statements=_statements([exactly(reached / count)], claim.limit), reason=reason, used=(sweep,), missing=missing
    )


def epoch_beside_start(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """How much faster an epoch is on more ranks, beside how much faster that is what a launch does before it."""
    best = evidence[0]
    launches = best.launches.assign(before=best.launches[["import_s", *_BEFORE_TRAINING]].sum(axis=1))
    over = best.counts[0]
    count = best.counts[-1]
    epoch = count_ratio(best, over, count)
    before = count_ratio(best, over, count, "before", launches)
    if epoch is None or before is None:
        return _other_work(best)
    log_seconds = launches[["before", "seconds"]].apply(np.log)
    means = log_seconds.groupby(launches["ranks"]).mean().apply(np.exp)
    words = []
    for epochs in dict.fromkeys((1, int(launches["epochs"].median()))):
        whole = means["before"] + epochs * means["seconds"]
        words.append(f"{whole[over] / whole[count]:.2f} with {units.plural(epochs, 'epoch')}")
    before_words = before.short if before.interval else f"{before.value:.2f}"
    reason = f"an epoch gains {epoch}, what comes before it {before_words}; a whole launch {', '.join(words)}"
    statement = Statement(value=epoch.interval, against=before.interval)
    return [Measured(statements=(statement,), reason=reason, used=(best,))]


def extra_reading_of_training(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """What reading by rank 0 takes longer than reading by all, a part of the training time.

    Both are samples, of one order of launches: what reading takes differs from launch to launch either way.
    """
    pair = _pair_that_differs_in_reading(evidence)
    if pair is None:
        return _lack("--distribution scatter and parallel, on the same rows and several ranks")
    scattered, parallel = pair
    ranks = max(set(scattered.counts) & set(parallel.counts))
    of_parallel = _with_reading(parallel, ranks)
    of_scattered = _with_reading(scattered, ranks)
    pairs = comparable(layout_launches(of_parallel), layout_launches(of_scattered))
    if pairs is None:
        return _lack("both in one session", scattered, parallel)
    of_parallel = of_parallel.iloc[pairs.base.places]
    of_scattered = of_scattered.iloc[pairs.group.places]
    interval = _extra_of_training(of_parallel, of_scattered, paired=pairs.paired)
    extra_s = float(of_scattered["reading"].median() - of_parallel["reading"].median())
    span = ""
    if interval:
        span = f", {units.percent(interval.low, 1)} to {units.percent(interval.high, 1)} of it"
    reason = (
        f"{units.seconds(max(0.0, extra_s))} more than reading in parallel on {units.ranks(ranks)}, "
        f"sending alone {units.seconds(float(of_scattered['distribute_s'].median()))}, beside "
        f"{units.seconds(float(of_scattered['trained_s'].median()))} of training{span}"
    )
    missing = _more_launches(pairs.fewest)
    statements = _statements([interval], claim.limit)
    return [Measured(statements=statements, reason=reason, used=(scattered, parallel), missing=missing)]


def _with_reading(sweep: ClaimEvidence, ranks: int) -> pd.DataFrame:
    """Return the launches of `sweep` on `ranks` ranks with the seconds of `reading`."""
    launches: pd.DataFrame = sweep.launches[sweep.launches["ranks"] == ranks]
    return launches.assign(reading=launches["load_s"] + launches["distribute_s"])


def _extra_of_training(parallel: pd.DataFrame, scattered: pd.DataFrame, *, paired: bool) -> Interval | None:
    """Return the interval of what reading by rank 0 takes longer, a part of training; None for too few launches."""
    fewest = min(len(parallel), len(scattered))
    if fewest < FEWEST_LAUNCHES:
        return None
    of_parallel, of_scattered = resamples(len(parallel), len(scattered), paired=paired)
    parallel_s = np.median(parallel["reading"].to_numpy()[of_parallel], axis=1)
    scattered_s = np.median(scattered["reading"].to_numpy()[of_scattered], axis=1)
    trained_s = np.median(scattered["trained_s"].to_numpy()[of_scattered], axis=1)
    return percentiles((scattered_s - parallel_s) / trained_s, fewest)


def _pair_that_differs_in_reading(evidence: Sequence[ClaimEvidence]) -> tuple[ClaimEvidence, ClaimEvidence] | None:
    """Return a sweep in which rank 0 reads for all and one in which every rank reads, on the same rows and ranks."""
    for scattered in evidence:
        for parallel in evidence:
            distributions = (scattered.workload.distribution, parallel.workload.distribution)
            is_same = (scattered.experiment, scattered.rows) == (parallel.experiment, parallel.rows)
            most_ranks = max(set(scattered.counts) & set(parallel.counts), default=1)
            if distributions == ("scatter", "parallel") and is_same and most_ranks > 1:
                return scattered, parallel
    return None


def computation_and_exchange(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """From p to q ranks: the fall of computation beside `ALIKE` of q/p, and `limit` beside that of the exchange."""
    once_an_epoch = [sweep for sweep in evidence if _is_averaged_once_an_epoch(sweep)]
    if not once_an_epoch:
        return _lack("a sweep with --sync weights:epoch: one exchange in an epoch")
    on_several = [sweep for sweep in once_an_epoch if len(_counts_above_one(sweep)) > 1]
    best = (on_several or once_an_epoch)[0]
    counts = _counts_above_one(best)
    if len(counts) < 2:
        return _lack("two rank counts above 1", best, reason=measured_on(best))
    over = counts[0]
    count = counts[-1]
    compute = count_ratio(best, over, count, "compute_seconds")
    wire = count_ratio(best, over, count, "wire_seconds")
    if compute is None or wire is None:
        return _other_work(best)
    wire_falls = wire.interval.scaled(ALIKE) if wire.interval else None
    reason = (
        f"computation falls by {compute}, ideal {count / over:g}; the exchange of {best.runs[0].weights.bytes:,} bytes "
        f"by {wire.short}"
    )
    statements = (
        Statement(value=compute.interval, against=exactly(ALIKE * count / over)),
        Statement(value=exactly(claim.limit), against=wire_falls),
    )
    return [Measured(statements=statements, reason=reason, used=(best,))]


def _counts_above_one(sweep: ClaimEvidence) -> list[int]:
    return [count for count in sweep.counts if count > 1]


def loss_difference(claim: Claim, evidence: Sequence[ClaimEvidence]) -> list[Measured]:
    """How far averaged weights end from the training loss of the fewest ranks, with the same batches at every count."""
    same_batches = [sweep for sweep in evidence if sweep.workload.global_batch is not None and len(sweep.counts) > 1]
    averaged = next((sweep for sweep in same_batches if _averages_weights(sweep)), None)
    if averaged is None:
        return _lack("--sync weights:K with --global-batch, the same batches at every rank count")
    by_gradients = [sweep for sweep in same_batches if sweep.workload.sync == "gradients"]
    compared = [sweep for sweep in by_gradients if sweep.experiment == averaged.experiment][:1]
    used = (averaged, *compared)
    ends = [units.percent(float(_loss_differences(sweep).median()), 2) for sweep in used]
    words = [f"{sweep.workload.sync} ends {end} from it" for sweep, end in zip(used, ends, strict=True)]
    differences = _loss_differences(averaged)
    interval = median_interval(differences)
    most = units.ranks(averaged.counts[-1])
    reason = f"training loss on {most} against that on {averaged.counts[0]}: {', '.join(words)}"
    missing = _more_launches(len(differences))
    statements = _statements([interval], claim.limit)
    return [Measured(statements=statements, reason=reason, used=used, missing=missing)]


def _loss_differences(sweep: ClaimEvidence) -> pd.Series:
    """Return how far the final training loss on most ranks is from that on the fewest, of each repeat: of one seed."""
    losses = sweep.launches.pivot_table(index="repeat", columns="ranks", values="train_loss")
    return (losses[sweep.counts[-1]] / losses[sweep.counts[0]] - 1).abs().dropna()


def rate_of_parameter_servers(claim: Claim, rates: pd.DataFrame) -> list[Measured]:
    """The samples per second of parameter servers over those of `gradients` on the same cores, on every workload.

    `rates`: a row for every block of a bench, with the rates of either; its error is shared over workloads.
    """
    if rates.empty:
        return _lack("`make bench` with the contender ParameterServerStrategy")
    words = []
    intervals = []
    groups = rates.groupby("workload", sort=False)
    for workload, blocks in groups:
        logs = np.log(blocks["servers"] / blocks["gradients"])
        over_blocks = ratio_over_blocks(logs.tolist(), level=1 - (1 - LEVEL) / len(groups))
        interval = over_blocks.interval if over_blocks else None
        span = f" ({units.ratio_span(interval)})" if interval else ""
        intervals.append(interval)
        words.append(f"{workload} {math.exp(logs.mean()):.2f}{span}")
    reason = f"of the samples per second of gradients: {', '.join(words)}"
    return [Measured(statements=_statements(intervals, claim.limit), reason=reason)]


METRICS: Mapping[ClaimMetric, Callable[[Claim, Sequence[ClaimEvidence]], list[Measured]]] = {
    ClaimMetric.SPEEDUP: speedup,
    ClaimMetric.ROWS: rows_in_equal_time,
    ClaimMetric.STEPS: speedup_of_each_step,
    ClaimMetric.SLOPE: speedup_and_slope,
    ClaimMetric.BESIDE: speedup_beside_another,
    ClaimMetric.LARGER: speedup_of_larger_networks,
    ClaimMetric.ACCURACY: launches_that_reach_an_accuracy,
    ClaimMetric.START: epoch_beside_start,
    ClaimMetric.READING: extra_reading_of_training,
    ClaimMetric.EXCHANGE: computation_and_exchange,
    ClaimMetric.LOSS: loss_difference,
}
"""All metrics but `ClaimMetric.SERVERS`, which a bench measures. Each returns the ways in which the claim may hold."""


def _is_averaged_once_an_epoch(sweep: ClaimEvidence) -> bool:
    policy = known_policy(sweep.workload.sync)
    return policy is not None and policy.period is None


def _averages_weights(sweep: ClaimEvidence) -> bool:
    policy = known_policy(sweep.workload.sync)
    return policy is not None and not policy.shares_gradients
