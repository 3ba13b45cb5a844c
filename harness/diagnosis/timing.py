"""Evidence in times: who came late to which sums, and what a step is made of."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from harness.analysis import numbers
from harness.analysis.breakdown import slow_rank
from harness.analysis.causes import FAR_OUT
from harness.diagnosis.case import Array, Case, Symptom
from harness.diagnosis.regular import SHORTEST, regular_delays
from harness.schema.record import RunRecord

WORTH = 0.01  # part of an epoch from which a cause is told
_RARE_WORTH = 0.001
_FEWEST = 5  # late calls of one rank
_CHANCE = 1e-4  # that so many of the late calls are one rank's
_INPUT = 0.05
_EARLY = 0.1  # part of an epoch's calls in which the tuner of tf.data learns
_WIRE = 0.25
_SLOWER = 1.05  # of the last third of the epochs to the first


def unequal_rows(case: Case) -> Symptom | None:
    """Ranks have unequal rows of a step, which nobody asked for."""
    batch = [rank.batch for rank in case.run.ranks]
    cost = case.skew_causes.get("rows", 0.0)
    if case.run.point.layout.shares is not None or cost < WORTH:
        return None
    text = f"Ranks have {min(batch)} to {max(batch)} rows of a step, and those with fewer wait for the others."
    return Symptom(text=text, cost=cost)


def slow_host(case: Case) -> Symptom | None:
    """All ranks of one host come later than all others."""
    if len(case.hosts) < 2 or len(case.hosts) == len(case.run.ranks) or not slow_rank(case.run, case.times):
        return None
    computed = (case.times.seconds - case.times.sync - case.times.input).sum(axis=0)
    hosts = np.array([rank.host for rank in case.run.ranks])
    worst = str(hosts[computed.argmax()])
    ratio = float(computed[hosts == worst].min() / computed[hosts != worst].max())
    if ratio <= 1.0:
        return None
    text = f"Every rank on {worst} computes longer than every other, by a factor of {ratio:.2f} or more."
    return Symptom(text=text, cost=case.skew, who=worst)


def one_slow_rank(case: Case) -> Symptom | None:
    """One rank computes longer than the others (`breakdown.slow_rank`)."""
    found = slow_rank(case.run, case.times)
    lasting = case.skew_causes
    if found is None or (lasting and lasting["rank"] < lasting["rare"]):
        return None
    text = (
        f"Rank {found.rank} of {found.ranks} on {found.host} is slow: it computed {found.ratio:.2f} times as long as "
        f"the others, which waited for it {numbers.percent(found.waited)} of an epoch."
    )
    return Symptom(text=text, cost=lasting.get("rank", case.skew), who=f"{found.rank}/{found.ranks}")


def rare_delays(case: Case) -> Symptom | None:
    """Single calls to which one rank comes far later than it usually does, more of them than chance gives it.

    Regular ones are found among larger noise too (`regular_delays`). Others are far beyond Tukey's outer fences of how
    much later than the median of the others each rank came. By chance every rank has as many of these calls as any
    other (binomial test).
    """
    late = [
        own - (own[:, ::-1] if own.shape[1] == 2 else np.median(own, axis=1, keepdims=True))
        for own in (one.between[:-1] for one in case.calls)
    ]
    return _regular(case, late) or _irregular(case, late)


def _regular(case: Case, late: Sequence[Array]) -> Symptom | None:
    found, ranks = regular_delays(late), len(case.run.ranks)
    if found is None:
        return None
    cost = found.count * found.delay * (ranks - 1) / ranks / case.total
    if cost < _RARE_WORTH:
        return None
    return _late(case, found.rank, found.delay, found.count, found.calls, cost, every=found.every)


def _irregular(case: Case, epochs: Sequence[Array]) -> Symptom | None:
    cost = case.skew_causes.get("rare", 0.0)
    if cost < _RARE_WORTH:
        return None
    late = np.concatenate(epochs)
    low, high = np.percentile(late, [25, 75], axis=0)
    far = late > high + FAR_OUT * (high - low)
    rank, ranks = int((late * far).sum(axis=0).argmax()), late.shape[1]
    if far[:, rank].sum() < _FEWEST:
        return None
    usual, typical = float(np.median(late[:, rank])), float(np.median(late[far[:, rank], rank]))
    far &= late >= (usual + typical) / 2  # smaller ones, which every machine has, are no witnesses
    far[1:] &= ~far[:-1]  # calls in a row are one event
    counts = far.sum(axis=0)
    if counts[rank] < _FEWEST:
        return None
    found = stats.binomtest(int(counts[rank]), int(counts.sum()), 1 / ranks, alternative="greater")
    if ranks * float(found.pvalue) > _CHANCE:
        return None
    at = np.flatnonzero(far[:, rank])
    apart = np.diff(at)
    every = int(np.median(apart))
    regular = bool(np.median(np.abs(apart - every)) <= 0.05 * every) and every >= SHORTEST
    delay = float(np.median(late[at, rank])) - usual
    return _late(case, rank, delay, len(at), len(far), cost, every=every if regular else 0)


def _late(case: Case, rank: int, delay: float, count: int, calls: int, cost: float, *, every: int) -> Symptom:
    """Return the evidence; `every` is 0 where no period is known."""
    when = f"every {every} calls, so that the program does it" if every else "irregularly, as interrupts do"
    ranks = len(case.run.ranks)
    text = (
        f"Rank {rank} of {ranks} on {case.run.ranks[rank].host} comes {numbers.seconds(delay)} late to {count} of "
        f"{calls} calls, {when}; all others wait for it."
    )
    return Symptom(text=text, cost=cost, who=f"{rank}/{ranks}")


def tuner(case: Case) -> Symptom | None:
    """Ranks wait for rows mostly in the first calls of every epoch: tf.data learns anew how much to decode ahead."""
    early = whole = 0.0
    for one in case.calls:
        waited = one.input.mean(axis=1)
        early += float(waited[: max(1, round(_EARLY * len(waited)))].sum())
        whole += float(waited.sum())
    cost = early / case.total
    if cost < WORTH or early < 0.5 * whole:
        return None
    text = f"{numbers.percent(early / whole)} of the waiting for rows is in the first tenth of each epoch's steps."
    return Symptom(text=text, cost=cost)


def input_bound(case: Case) -> Symptom | None:
    """Ranks wait for rows."""
    if case.input < _INPUT:
        return None
    return Symptom(text=f"Ranks wait for rows {numbers.percent(case.input)} of an epoch.", cost=case.input)


def little_work(case: Case) -> Symptom | None:
    """The sums take as long as what is computed between them."""
    if case.wire < _WIRE:
        return None
    steps = sum(epoch.steps for epoch in case.run.epochs)
    sums, rest = (numbers.seconds(part * case.total / steps) for part in (case.wire, 1 - case.wire - case.skew))
    batch = [rank.batch for rank in case.run.ranks]
    rows = numbers.span(min(batch), max(batch))
    text = f"A step computes {rest} on {rows} rows a rank and sums {numbers.memory(case.run.weights.bytes)} for {sums}."
    return Symptom(text=text, cost=case.wire)


def partial_batch(case: Case) -> Symptom | None:
    """The last step of an epoch has few rows and costs nearly as much as any other."""
    run = case.run
    rows = sum(rank.rows for rank in run.ranks) % run.global_batch
    if run.point.workload.drop_remainder or not rows or run.point.workload.sync != "gradients":
        return None
    lost = []
    for one in case.calls:
        lengths = np.diff(one.exit.max(axis=1)) if len(one.exit) > 2 else np.zeros(0)
        if len(lengths):
            lost.append(
                lengths[-1] - np.median(lengths[:-1] if len(lengths) > 1 else lengths) * rows / run.global_batch
            )
    cost = len(lost) * float(np.median(lost)) / case.total if lost else 0.0
    if cost < WORTH:
        return None
    text = f"The last of {run.epochs[0].steps} steps of an epoch has {rows:,} of {run.global_batch:,} rows."
    return Symptom(text=text, cost=cost)


def slowing_down(case: Case) -> Symptom | None:
    """All ranks compute ever longer, epoch by epoch."""
    computed = (case.times.seconds - case.times.sync - case.times.input).mean(axis=1)
    third = len(computed) // 3
    if third < 2:
        return None
    first, last = computed[:third], computed[-third:]
    ratio = float(np.median(last) / np.median(first))
    trend = stats.kendalltau(np.arange(len(computed)), computed).pvalue
    if ratio < _SLOWER or first.max() >= last.min() or trend > 0.01:
        return None
    governor = case.run.provenance.system.get("frequency governor", "")
    said = f" The governor of the frequency is {governor}." if governor else ""
    text = f"Computation of an epoch grew by {numbers.percent(ratio - 1)} from the first third to the last.{said}"
    return Symptom(text=text, cost=float(1 - np.median(first) * len(computed) / computed.sum()))


def unsure_clocks(case: Case) -> Symptom | None:
    """The clocks of the hosts are known too badly to tell who waited for whom."""
    error = max(rank.clock_error_s for rank in case.run.ranks)
    drift = max(abs(rank.clock_drift) for rank in case.run.ranks)
    calls = max(1, len(case.entries))
    each = (case.skew + case.wire) * case.total / calls
    if drift <= 1e-4 and (error <= 0 or error < 0.5 * each):
        return None
    text = (
        f"Clocks of the hosts may be off by {numbers.seconds(error)} and drift by {1e6 * drift:.0f} µs a second, a "
        f"call takes {numbers.seconds(each)}: who waited for whom is uncertain."
    )
    return Symptom(text=text)


def worse_learning(case: Case) -> Symptom | None:
    """The same epochs end with a much worse loss than on the fewest ranks, whose global batch is smaller."""
    run, base = case.run, case.base
    if base is None or run.point.workload.sync != "gradients" or run.global_batch <= base.global_batch:
        return None
    if len(run.epochs) != len(base.epochs):
        return None
    mine, theirs = _scores(run), _scores(base)
    worse = mine["loss"] > 1.25 * theirs["loss"] or not np.isfinite(mine["loss"])
    if not worse or (np.isfinite(mine["accuracy"]) and mine["accuracy"] > theirs["accuracy"] - 0.01):
        return None
    scaling = "scaled with the ranks" if run.point.workload.rate_scaling == "linear" else "not scaled"
    text = (
        f"With {run.global_batch / base.global_batch:g} times the global batch and the learning rate {scaling} the "
        f"training loss ends at {numbers.significant(mine['loss'])} instead of {numbers.significant(theirs['loss'])}, "
        f"test accuracy at {numbers.percent(mine['accuracy'], 1)} instead of {numbers.percent(theirs['accuracy'], 1)}."
    )
    return Symptom(text=text)


def _scores(run: RunRecord) -> Mapping[str, float]:
    last = run.epochs[-1]
    values = {"loss": last.train_loss, "accuracy": last.test_accuracy}
    return {name: float("nan") if value is None else float(value) for name, value in values.items()}
