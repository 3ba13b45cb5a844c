"""Rules about what the texts say in words. Each is a function of the claim and of the sweeps that compare, best first.

They name no rank counts: they are judged from the fewest to the most ranks that a sweep has.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.analysis import numbers
from harness.analysis.frames import ONE_OFF
from harness.analysis.learning import times_to_accuracy
from harness.analysis.stats import Interval, median_interval
from harness.claims.evidence import ClaimEvidence
from harness.claims.finding import (
    CONFIRMED,
    INCONCLUSIVE,
    NOT_MEASURED,
    REFUTED,
    ClaimFinding,
    above,
    decide,
    lacking,
    less,
    ratio,
)
from harness.schema.claim import Claim
from harness.schema.sync import find_policy

MINOR = 0.05  # of the training time
ALIKE = 0.9  # a cost that falls by less than a tenth does not fall
SAME_LOSS = 0.01  # relative difference of final training losses: beyond it other weights were found
_BEFORE_TRAINING = ["import_s", "load_s", "distribute_s", "compile_s"]
assert set(_BEFORE_TRAINING) < set(ONE_OFF)


def accuracy(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """Some rank count reaches `value` test accuracy within `seconds`, reading and compiling included, every launch."""
    assert claim.value is not None
    best: ClaimFinding | None = None
    for one in found:
        times = times_to_accuracy(one.epochs, claim.value - claim.reading)
        launches = one.launches.set_index("run")
        before = launches[_BEFORE_TRAINING[1:]].sum(axis=1)
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
    launches = one.launches.assign(before=one.launches[_BEFORE_TRAINING].sum(axis=1))
    over, count = one.counts[0], one.counts[-1]
    epoch, before = ratio(launches, over, count), ratio(launches, over, count, "before")
    if epoch is None or before is None:
        return ClaimFinding(outcome=NOT_MEASURED, said="the points did not do the same work", used=(one,))
    medians = launches.groupby("ranks")[["before", "seconds"]].median()
    epochs = int(launches["epochs"].median())
    whole = {number: medians["before"] + number * medians["seconds"] for number in (1, epochs)}
    told = ", ".join(
        f"{whole[number][over] / whole[number][count]:.2f} with {numbers.plural(number, 'epoch')}" for number in whole
    )
    span = f" ({numbers.ratio_span(before.interval)})" if before.interval else ""
    said = (
        f"an epoch gains {epoch}, what comes before it {before.value:.2f}{span}; "
        f"a whole launch {told}{lacking([epoch.interval, before.interval])}"
    )
    return ClaimFinding(outcome=decide([less(before.interval, epoch.interval)]), said=said, used=(one,))


def reading(claim: Claim, found: Sequence[ClaimEvidence]) -> ClaimFinding:
    """What reading by rank 0 takes longer than reading by all is less than `MINOR` of the training time."""
    pairs = [(own, other) for own in found for other in found if _differ_in_reading(own, other)]
    if not pairs:
        said = "needs DISTRIBUTION=scatter and parallel, on the same rows and several ranks"
        return ClaimFinding(outcome=NOT_MEASURED, said=said)
    own, other = pairs[0]
    ranks = max(set(own.counts) & set(other.counts))
    scatter, parallel = (one.launches[one.launches["ranks"] == ranks] for one in (own, other))
    usual = float((parallel["load_s"] + parallel["distribute_s"]).median())
    extra = scatter["load_s"] + scatter["distribute_s"] - usual
    interval = median_interval(extra / scatter["trained_s"])
    minor = above(interval, MINOR)
    said = (
        f"{numbers.seconds(max(0.0, float(extra.median())))} more than reading in parallel on {numbers.ranks(ranks)}, "
        f"sending alone {numbers.seconds(float(scatter['distribute_s'].median()))}, beside "
        f"{numbers.seconds(float(scatter['trained_s'].median()))} of training{lacking([interval])}"
    )
    return ClaimFinding(outcome=decide([None if minor is None else not minor]), said=said, used=(own, other))


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
        return ClaimFinding(
            outcome=NOT_MEASURED, said="needs a sweep with SYNC=weights:epoch: one exchange in an epoch"
        )
    one = next((one for one in once if sum(count > 1 for count in one.counts) > 1), once[0])
    counts = [count for count in one.counts if count > 1]
    if len(counts) < 2:
        return ClaimFinding(outcome=NOT_MEASURED, said="needs two rank counts above 1", used=(one,))
    over, count = counts[0], counts[-1]
    work, wire = (ratio(one.launches, over, count, column) for column in ("compute_seconds", "wire_seconds"))
    if work is None or wire is None:
        return ClaimFinding(outcome=NOT_MEASURED, said="the points did not do the same work", used=(one,))
    falls = wire.interval.scaled(ALIKE) if wire.interval else None
    exchange = above(falls, 1)
    outcome = decide([above(work.interval, ALIKE * count / over), None if exchange is None else not exchange])
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
        return ClaimFinding(
            outcome=NOT_MEASURED, said="needs SYNC=weights:K with GLOBAL_BATCH=, the same batches at every rank count"
        )
    other = next((one for one in same if one.workload.sync == "gradients" and one.experiment == own.experiment), None)
    used = (own, other) if other else (own,)
    told = [f"{one.workload.sync} ends {numbers.percent(float(_apart(one).median()), 2)} from it" for one in used]
    interval = median_interval(_apart(own))
    other_loss = above(interval, SAME_LOSS)
    said = f"training loss on {numbers.ranks(own.counts[-1])} against that on {own.counts[0]}: {', '.join(told)}"
    outcome = decide([None if other_loss is None else not other_loss])
    return ClaimFinding(outcome=outcome, said=f"{said}{lacking([interval])}", used=used)


def _apart(one: ClaimEvidence) -> pd.Series:
    """Return how far the final training loss on most ranks is from that on the fewest, of each repeat: of one seed."""
    losses = one.launches.pivot_table(index="repeat", columns="ranks", values="train_loss")
    return (losses[one.counts[-1]] / losses[one.counts[0]] - 1).abs().dropna()


def servers(claim: Claim, rates: pd.DataFrame) -> ClaimFinding:
    """Training with parameter servers is slower than `gradients` on the same cores.

    `rates`: a row for every round and workload of a bench, with the rows per second of either.
    """
    if rates.empty:
        return ClaimFinding(outcome=NOT_MEASURED, said="needs `make bench` with the contender ParameterServerStrategy")
    ratios = np.asarray(rates["servers"] / rates["gradients"])
    interval: Interval | None = median_interval(ratios)
    faster = above(interval, 1)
    said = (
        f"{np.median(ratios):.2f} of the rows per second ({ratios.min():.2f} to {ratios.max():.2f}), the median of "
        f"{rates['workload'].nunique()} workloads and {len(rates)} rounds in all{lacking([interval])}"
    )
    return ClaimFinding(outcome=decide([None if faster is None else not faster]), said=said)
