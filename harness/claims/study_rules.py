"""Rules on what the papers say in words: of launches as a whole, of reading, exchange, losses and parameter servers.

Such claims name no counts and are judged from the fewest to the most ranks that a sweep has.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.analysis import units
from harness.analysis.accuracy_times import times_to_accuracy
from harness.analysis.comparison import ComparableLaunches, comparable
from harness.analysis.confidence_intervals import (
    FEWEST_LAUNCHES,
    LEVEL,
    Interval,
    median_interval,
    percentiles,
    ratio_over_blocks,
    resamples,
)
from harness.claims.claim_evidence import ClaimEvidence
from harness.claims.claim_verdict import (
    CONFIRMED,
    REFUTED,
    UNKNOWN,
    ClaimFinding,
    above,
    count_ratio,
    finding_on_parts,
    less,
    measured_on,
    negated,
    other_work,
    unknown_for,
)
from harness.schema.claim import Claim
from harness.schema.sync_policies import known_policy

MINOR = 0.05  # of the training time
ALIKE = 0.9  # a cost that falls by less than a tenth does not fall
SAME_LOSS = 0.01  # relative difference of final training losses: beyond it other weights were found
_BEFORE_TRAINING = ["load_s", "distribute_s", "compile_s"]  # what a launch does before it, beside its imports


def accuracy_in_time(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Some rank count reaches `value` test accuracy within `seconds`, reading and compiling included, every launch."""
    best: ClaimFinding | None = None
    for sweep in evidence:
        for ranks in sweep.counts:
            finding = _accuracy_on(claim, sweep, ranks)
            if finding.outcome == CONFIRMED:
                return finding
            if best is None or (best.outcome, finding.outcome) == (REFUTED, UNKNOWN):
                best = finding
    assert best is not None
    return best


def _accuracy_on(claim: Claim, sweep: ClaimEvidence, ranks: int) -> ClaimFinding:
    """Return the finding by the launches of `sweep` on `ranks` ranks."""
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
        missing = f"{FEWEST_LAUNCHES - count} more launches"
    elif 0 < reached < count:
        missing = "launches that agree"
    elif not reached and trained_s < claim.seconds:
        missing = f"launches that train for {units.seconds(claim.seconds)}"
    outcome = CONFIRMED if reached else REFUTED
    return ClaimFinding(outcome=UNKNOWN if missing else outcome, reason=reason, used=(sweep,), missing=missing)


def more_epochs_gain_more(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """More epochs gain more: an epoch is faster on more ranks by more than what a launch does before it."""
    best = evidence[0]
    launches = best.launches.assign(before=best.launches[["import_s", *_BEFORE_TRAINING]].sum(axis=1))
    over = best.counts[0]
    count = best.counts[-1]
    epoch = count_ratio(best, over, count)
    before = count_ratio(best, over, count, "before", launches)
    if epoch is None or before is None:
        return other_work(best)
    medians = launches.groupby("ranks")[["before", "seconds"]].median()
    words = []
    for epochs in dict.fromkeys((1, int(launches["epochs"].median()))):
        whole = medians["before"] + epochs * medians["seconds"]
        words.append(f"{whole[over] / whole[count]:.2f} with {units.plural(epochs, 'epoch')}")
    before_words = before.short if before.interval else f"{before.value:.2f}"
    reason = f"an epoch gains {epoch}, what comes before it {before_words}; a whole launch {', '.join(words)}"
    return finding_on_parts(
        [less(before.interval, epoch.interval)], reason, best, rests=[before.interval, epoch.interval]
    )


def reading_by_one_rank_is_minor(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """What reading by rank 0 takes longer than reading by all is less than `MINOR` of the training time.

    Both are samples, of one order of launches: what reading takes differs from launch to launch either way.
    """
    pair = _pair_that_differs_in_reading(evidence)
    if pair is None:
        return unknown_for("DISTRIBUTION=scatter and parallel, on the same rows and several ranks")
    scattered, parallel = pair
    ranks = max(set(scattered.counts) & set(parallel.counts))
    both = comparable(_with_reading(parallel, ranks), _with_reading(scattered, ranks))
    if both is None:
        return unknown_for("both in one session", scattered, parallel)
    interval = _extra_of_training(both)
    extra_s = float(both.group["reading"].median() - both.base["reading"].median())
    span = ""
    if interval:
        span = f", {units.percent(interval.low, 1)} to {units.percent(interval.high, 1)} of it"
    reason = (
        f"{units.seconds(max(0.0, extra_s))} more than reading in parallel on {units.ranks(ranks)}, "
        f"sending alone {units.seconds(float(both.group['distribute_s'].median()))}, beside "
        f"{units.seconds(float(both.group['trained_s'].median()))} of training{span}"
    )
    return finding_on_parts([negated(above(interval, MINOR))], reason, scattered, parallel, rests=[interval])


def _with_reading(sweep: ClaimEvidence, ranks: int) -> pd.DataFrame:
    """Return the launches of `sweep` on `ranks` ranks with the seconds of `reading`."""
    launches: pd.DataFrame = sweep.launches[sweep.launches["ranks"] == ranks]
    return launches.assign(reading=launches["load_s"] + launches["distribute_s"])


def _extra_of_training(both: ComparableLaunches) -> Interval | None:
    """Return the interval of what reading by rank 0 takes longer, a part of training; None for too few launches."""
    fewest = min(len(both.base), len(both.group))
    if fewest < FEWEST_LAUNCHES:
        return None
    of_parallel, of_scattered = resamples(len(both.base), len(both.group), paired=both.paired)
    parallel_s = np.median(both.base["reading"].to_numpy()[of_parallel], axis=1)
    scattered_s = np.median(both.group["reading"].to_numpy()[of_scattered], axis=1)
    trained_s = np.median(both.group["trained_s"].to_numpy()[of_scattered], axis=1)
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


def computation_falls_and_exchange_does_not(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """From p to q ranks the computation falls by q/p, the exchange does not; both within a tenth."""
    once_an_epoch = [sweep for sweep in evidence if _is_averaged_once_an_epoch(sweep)]
    if not once_an_epoch:
        return unknown_for("a sweep with SYNC=weights:epoch: one exchange in an epoch")
    on_several = [sweep for sweep in once_an_epoch if len(_counts_above_one(sweep)) > 1]
    best = (on_several or once_an_epoch)[0]
    counts = _counts_above_one(best)
    if len(counts) < 2:
        return unknown_for("two rank counts above 1", best, reason=measured_on(best))
    over = counts[0]
    count = counts[-1]
    compute = count_ratio(best, over, count, "compute_seconds")
    wire = count_ratio(best, over, count, "wire_seconds")
    if compute is None or wire is None:
        return other_work(best)
    wire_falls = wire.interval.scaled(ALIKE) if wire.interval else None
    parts = [above(compute.interval, ALIKE * count / over), negated(above(wire_falls, 1))]
    reason = (
        f"computation falls by {compute}, ideal {count / over:g}; the exchange of {best.runs[0].weights.bytes:,} bytes "
        f"by {wire.short}"
    )
    return finding_on_parts(parts, reason, best, rests=[compute.interval, wire.interval])


def _is_averaged_once_an_epoch(sweep: ClaimEvidence) -> bool:
    policy = known_policy(sweep.workload.sync)
    return policy is not None and policy.period is None


def _averages_weights(sweep: ClaimEvidence) -> bool:
    policy = known_policy(sweep.workload.sync)
    return policy is not None and not policy.shares_gradients


def _counts_above_one(sweep: ClaimEvidence) -> list[int]:
    return [count for count in sweep.counts if count > 1]


def same_loss_with_same_batches(claim: Claim, evidence: Sequence[ClaimEvidence]) -> ClaimFinding:
    """With the same batches at every rank count, averaged weights end with the training loss of the fewest ranks."""
    same_batches = [sweep for sweep in evidence if sweep.workload.global_batch is not None and len(sweep.counts) > 1]
    averaged = next((sweep for sweep in same_batches if _averages_weights(sweep)), None)
    if averaged is None:
        return unknown_for("SYNC=weights:K with GLOBAL_BATCH=, the same batches at every rank count")
    by_gradients = [sweep for sweep in same_batches if sweep.workload.sync == "gradients"]
    compared = [sweep for sweep in by_gradients if sweep.experiment == averaged.experiment][:1]
    used = (averaged, *compared)
    ends = [units.percent(float(_loss_differences(sweep).median()), 2) for sweep in used]
    words = [f"{sweep.workload.sync} ends {end} from it" for sweep, end in zip(used, ends, strict=True)]
    interval = median_interval(_loss_differences(averaged))
    most = units.ranks(averaged.counts[-1])
    reason = f"training loss on {most} against that on {averaged.counts[0]}: {', '.join(words)}"
    return finding_on_parts([negated(above(interval, SAME_LOSS))], reason, *used, rests=[interval])


def _loss_differences(sweep: ClaimEvidence) -> pd.Series:
    """Return how far the final training loss on most ranks is from that on the fewest, of each repeat: of one seed."""
    losses = sweep.launches.pivot_table(index="repeat", columns="ranks", values="train_loss")
    return (losses[sweep.counts[-1]] / losses[sweep.counts[0]] - 1).abs().dropna()


def parameter_servers_are_slower(rates: pd.DataFrame) -> ClaimFinding:
    """Training with parameter servers is slower than `gradients` on the same cores, on every workload.

    `rates`: a row for every block of a bench, with the rows per second of either; its error is shared over workloads.
    """
    if rates.empty:
        return unknown_for("`make bench` with the contender ParameterServerStrategy")
    words = []
    rests = []
    groups = rates.groupby("workload", sort=False)
    for workload, blocks in groups:
        logs = np.log(blocks["servers"] / blocks["gradients"])
        over_blocks = ratio_over_blocks(logs.tolist(), level=1 - (1 - LEVEL) / len(groups))
        interval = over_blocks.interval if over_blocks else None
        span = f" ({units.ratio_span(interval)})" if interval else ""
        rests.append(interval)
        words.append(f"{workload} {math.exp(logs.mean()):.2f}{span}")
    reason = f"of the rows per second of gradients: {', '.join(words)}"
    return finding_on_parts([negated(above(interval, 1)) for interval in rests], reason, rests=rests)
