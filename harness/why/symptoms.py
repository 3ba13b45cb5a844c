"""What shows a known cause in one launch: in what the record says of machine, placement and settings, and in times."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from harness.analysis import numbers
from harness.analysis.time_parts import slow_rank
from harness.base.cpu_contention import MOST_QUEUED
from harness.schema.record import RunRecord
from harness.schema.sweep import Failure
from harness.why.launch_detail import FAR_OUT, Case

_CONTENDED = 0.25  # of their time: TensorFlow's own threads wait 8 to 12 % for each other on a quiet core
_STOLEN = 0.02
_TCP = {"UCX_TLS": r"\btcp\b", "OMPI_MCA_btl": r"\btcp\b", "FI_PROVIDER": r"\b(?:tcp|sockets)\b"}
_FABRIC = {"UCX_TLS": r"\b(?:rc|dc|ud|ib)", "OMPI_MCA_btl": r"\b(?:openib|ofi)\b", "FI_PROVIDER": r"\b(?:verbs|psm)"}
_SINGLETON = re.compile(r"1 MPI ranks were started for a layout of (\d+)")
_LEAST_COST = 0.01  # part of an epoch from which a cause is reported
_INPUT = 0.05
_EARLY = 0.1  # part of an epoch's calls in which the tuner of tf.data learns
_WIRE = 0.25
_SLOWER = 1.05  # of the last third of the epochs to the first


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """What shows a cause in one launch: a sentence, and the part of an epoch that it costs, None where that is not
    time or not known. `who` distinguishes findings of different ranks."""

    text: str
    cost: float | None = None
    who: str = ""


def _waiting(case: Case) -> float:
    """Return the part of the time that a rank's threads were ready to run and had no core: all wait for the worst."""
    return min(1.0, max(rank.queued_share for rank in case.run.ranks))


def oversubscribed(case: Case) -> Symptom | None:
    """Ranks need more cores than they may run on."""
    for host in sorted(case.hosts):
        here = [rank for rank in case.run.ranks if rank.host == host]
        cores, needed = {core for rank in here for core in rank.cores}, sum(rank.threads for rank in here)
        if len(cores) < needed:
            text = f"{numbers.plural(len(here), 'rank')} on {host} need {needed} cores and may run on {len(cores)}."
            return Symptom(text=text, cost=_waiting(case), who=host)
    return None


def bound_together(case: Case) -> Symptom | None:
    """Ranks are bound to the same core though there are enough."""
    for host in sorted(case.hosts):
        owner: dict[int, int] = {}
        for rank in (one for one in case.run.ranks if one.host == host and len(one.cores) <= one.threads):
            for core in rank.cores:
                if core in owner:
                    text = f"Ranks {owner[core]} and {rank.rank} are both bound to core {core} of {host}."
                    return Symptom(text=text, cost=_waiting(case), who=host)
                owner[core] = rank.rank
    return None


def contending_threads(case: Case) -> Symptom | None:
    """The ranks' own threads wait for each other: more of them than cores."""
    waiting = _waiting(case)
    others = case.run.provenance.other_load
    if waiting - min(waiting, others) < _CONTENDED:
        return None
    most = case.run.point.layout.threads
    said = ", ".join(
        f"{name}={value}"
        for name, value in case.run.provenance.environment.items()
        if name.endswith(("_NUM_THREADS", "_PARALLELISM_THREADS")) and value.isdecimal() and int(value) > most
    )
    text = f"Threads of the ranks wait {numbers.percent(waiting)} of their time for a core that no other program has"
    return Symptom(text=f"{text}{f' ({said})' if said else ''}.", cost=waiting)


def other_programs(case: Case) -> Symptom | None:
    """Other processes have the ranks' cores."""
    load = case.run.provenance.other_load
    waits = [min(rank.queued_share, load) for rank in case.run.ranks]
    if max(waits) <= MOST_QUEUED:
        return None
    rank = int(np.argmax(waits))
    text = f"Other programs keep {load:.2f} cores busy; rank {rank} waits {numbers.percent(waits[rank])} of its time."
    return Symptom(text=text, cost=max(waits))


def stolen(case: Case) -> Symptom | None:
    """The hypervisor gives the cores to other guests."""
    share = max(rank.stolen_share for rank in case.run.ranks)
    if share < _STOLEN:
        return None
    return Symptom(text=f"The hypervisor gave {numbers.percent(share, 1)} of the cores' time to others.", cost=share)


def small_segments(case: Case) -> Symptom | None:
    """Shared memory had no room for the allreduce."""
    return _noted(case, "shared memory (/dev/shm) has no room")


def no_compiler(case: Case) -> Symptom | None:
    """The allreduce goes through Python because the operation could not be built."""
    return _noted(case, "numpy_function bridge is in use")


def _noted(case: Case, words: str) -> Symptom | None:
    note = next((note for note in case.run.notes if words in note), None)
    return None if note is None else Symptom(text=f"{note[0].upper()}{note[1:].rstrip('.')}.", cost=case.wire)


def slow_path(case: Case) -> Symptom | None:
    """Messages between hosts are set to take TCP although there is a faster network."""
    origin = case.run.provenance
    fabric = origin.system.get("InfiniBand", "")
    if len(case.hosts) < 2 or not fabric:
        return None
    for name, pattern in _TCP.items():
        value = origin.environment.get(name, "")
        if re.search(pattern, value) and not value.startswith("^") and not re.search(_FABRIC[name], value):
            text = f"{name}={value} sends messages by TCP, and there is {fabric}."
            return Symptom(text=text, cost=case.wire)
    return None


def singletons(failure: Failure) -> Symptom | None:
    """Every rank was a world of its own: the launcher's process manager is not the MPI library's."""
    found = _SINGLETON.search(f"{failure.reason}\n{failure.tail}")
    if found is None:
        return None
    return Symptom(text=f"Each of {found[1]} ranks was a world of one: the launcher and the MPI library do not match.")


def killed_in_shared_memory(failure: Failure) -> Symptom | None:
    """A rank touched shared memory that is not there."""
    if not re.search(r"Bus error|SIGBUS|signal 7\b", f"{failure.reason}\n{failure.tail}"):
        return None
    return Symptom(text="A rank was ended by a bus error: shared memory (/dev/shm) is full.")


def unequal_rows(case: Case) -> Symptom | None:
    """Ranks have unequal rows of a step, which nobody asked for."""
    batch = [rank.batch for rank in case.run.ranks]
    cost = case.skew_causes.get("rows", 0.0)
    if case.run.point.layout.shares is not None or cost < _LEAST_COST:
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
    """One rank computes longer than the others (`time_parts.slow_rank`)."""
    found = slow_rank(case.run, case.times)
    lasting = case.skew_causes
    if found is None or (lasting and lasting["rank"] < lasting["rare"]):
        return None
    text = (
        f"Rank {found.rank} of {found.ranks} on {found.host} is slow: it computed {found.ratio:.2f} times as long as "
        f"the others, which waited for it {numbers.percent(found.waited)} of an epoch."
    )
    return Symptom(text=text, cost=lasting.get("rank", case.skew), who=f"{found.rank}/{found.ranks}")


def tuner(case: Case) -> Symptom | None:
    """Ranks wait for rows mostly in the first calls of every epoch: tf.data learns again how much to decode ahead."""
    early = whole = 0.0
    for one in case.calls:
        waited = one.input.mean(axis=1)
        early += float(waited[: max(1, round(_EARLY * len(waited)))].sum())
        whole += float(waited.sum())
    cost = early / case.total
    if cost < _LEAST_COST or early < 0.5 * whole:
        return None
    text = f"{numbers.percent(early / whole)} of the waiting for rows is in the first tenth of each epoch's steps."
    return Symptom(text=text, cost=cost)


def input_bound(case: Case) -> Symptom | None:
    """Ranks wait for rows."""
    if case.input < _INPUT:
        return None
    return Symptom(text=f"Ranks wait for rows {numbers.percent(case.input)} of an epoch.", cost=case.input)


def little_work(case: Case) -> Symptom | None:
    """The allreduces take as long as what is computed between them."""
    if case.wire < _WIRE:
        return None
    steps = sum(epoch.steps for epoch in case.run.epochs)
    wire, rest = (numbers.seconds(part * case.total / steps) for part in (case.wire, 1 - case.wire - case.skew))
    batch = [rank.batch for rank in case.run.ranks]
    rows = numbers.span(min(batch), max(batch))
    text = (
        f"A step computes {rest} on {rows} rows a rank and reduces {numbers.memory(case.run.weights.bytes)} in {wire}."
    )
    return Symptom(text=text, cost=case.wire)


def partial_batch(case: Case) -> Symptom | None:
    """The last step of an epoch has few rows and costs nearly as much as any other."""
    run = case.run
    rows = sum(rank.rows for rank in run.ranks) % run.global_batch
    if run.point.workload.drop_remainder or not rows or run.point.workload.sync != "gradients":
        return None
    steps = [np.diff(one.exit.max(axis=1)) for one in case.calls if len(one.exit) > 2]
    extra = [lengths[-1] - np.median(lengths[:-1]) * rows / run.global_batch for lengths in steps]
    cost = len(extra) * float(np.median(extra)) / case.total if extra else 0.0
    if cost < _LEAST_COST:
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


def _scores(run: RunRecord) -> dict[str, float]:
    last = run.epochs[-1]
    values = {"loss": last.train_loss, "accuracy": last.test_accuracy}
    return {name: float("nan") if value is None else float(value) for name, value in values.items()}


SHORTEST = 5  # calls: of events that are closer one cannot say that they are regular
_LEAST_DELAY = 0.001  # part of an epoch
_EVENTS = 5  # delays of one rank, of a regular one in every epoch
_CALLS, _EPOCHS, _RANKS = 2000, 5, 16  # examined; of the ranks those that come late by most
_CHANCE_REGULAR = 1e-5  # that calls without a period seem as regular
_CHANCE_RANK = 1e-4  # that so many of the late calls are one rank's

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RareDelay:
    """Rank `rank` comes `delay` seconds later than usual to `count` of `calls`: `every` so many, 0 without period."""

    rank: int
    delay: float
    count: int
    calls: int
    every: int


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
    ranks, found = len(case.run.ranks), regular_delays(late)
    cost = found.count * found.delay * (ranks - 1) / ranks / case.total if found else 0.0
    if found is None or cost < _LEAST_DELAY:
        cost = case.skew_causes.get("rare", 0.0)
        found = irregular_delays(late) if cost >= _LEAST_DELAY else None
    if found is None:
        return None
    when = f"every {found.every} calls, so the program causes it" if found.every else "irregularly, as interrupts are"
    text = (
        f"Rank {found.rank} of {ranks} on {case.run.ranks[found.rank].host} comes {numbers.seconds(found.delay)} late "
        f"to {found.count} of {found.calls} calls, {when}; all others wait for it."
    )
    return Symptom(text=text, cost=cost, who=f"{found.rank}/{ranks}")


def irregular_delays(epochs: Sequence[Array]) -> RareDelay | None:
    """Return the delays of the rank that comes far too late most often, None where chance would give it as many.

    `epochs` as in `regular_delays`.
    """
    late = np.concatenate(epochs)
    low, high = np.percentile(late, [25, 75], axis=0)
    far = late > high + FAR_OUT * (high - low)
    rank, ranks = int((late * far).sum(axis=0).argmax()), late.shape[1]
    if far[:, rank].sum() < _EVENTS:
        return None
    usual, typical = float(np.median(late[:, rank])), float(np.median(late[far[:, rank], rank]))
    far &= late >= (usual + typical) / 2  # smaller ones, which every machine has, do not count
    far[1:] &= ~far[:-1]  # calls in a row are one event
    counts = far.sum(axis=0)
    if counts[rank] < _EVENTS:
        return None
    found = stats.binomtest(int(counts[rank]), int(counts.sum()), 1 / ranks, alternative="greater")
    if ranks * float(found.pvalue) > _CHANCE_RANK:
        return None
    at = np.flatnonzero(far[:, rank])
    steps = np.diff(at)
    every = int(np.median(steps))
    regular = bool(np.median(np.abs(steps - every)) <= 0.05 * every) and every >= SHORTEST
    delay = float(np.median(late[at, rank])) - usual
    return RareDelay(rank=rank, delay=delay, count=len(at), calls=len(far), every=every if regular else 0)


def regular_delays(epochs: Sequence[Array]) -> RareDelay | None:
    """Return the clearest regular delay, None where chance would give one as clear.

    `epochs` have how much later than the others each rank came, in seconds, [calls, ranks]. Each is folded by every
    period: of each call of it the mean place among all calls of the epoch (their ranks, so that no single call counts
    for more than another), whose latest is compared with what as many calls of any epoch would give: the normal
    limit of the mean of uniform numbers, for as many calls as the period has. Epochs, which need not begin at the same
    call of a period, are combined by Fisher's method, periods and ranks by Bonferroni's.
    """
    seen = [one[:_CALLS] for one in epochs[:_EPOCHS] if len(one) >= SHORTEST * _EVENTS]
    if not seen:
        return None
    ranks = np.argsort(sum(one.clip(min=0).mean(axis=0) for one in seen))[-_RANKS:]
    places = [(stats.rankdata(one[:, ranks], axis=0) - 0.5) / len(one) for one in seen]
    periods = range(SHORTEST, min(map(len, seen)) // _EVENTS + 1)
    logarithms = np.array([sum(_chances(one, every) for one in places) for every in periods])
    chances = special.gammaincc(len(places), -logarithms)  # of chi squared with two degrees of freedom an epoch
    place, column = np.unravel_index(chances.argmin(), chances.shape)
    if chances[place, column] * len(periods) * seen[0].shape[1] > _CHANCE_REGULAR:
        return None
    every, rank = periods[place], int(ranks[column])
    late = [one[:, rank] for one in epochs if len(one) >= every]
    latest = [int(np.argmax([np.median(one[phase::every]) for phase in range(every)])) for one in late]
    there = [np.arange(len(one)) % every == phase for one, phase in zip(late, latest, strict=True)]
    events, others = (
        np.concatenate([one[at if event else ~at] for one, at in zip(late, there, strict=True)])
        for event in (True, False)
    )
    delay, calls = float(np.median(events) - np.median(others)), len(events) + len(others)
    return RareDelay(rank=rank, delay=delay, count=len(events), calls=calls, every=every)


def _chances(places: Array, every: int) -> Array:
    """Return the logarithm of the probability that some call of the period is as late by chance, for every rank."""
    whole, more = divmod(len(places), every)
    sums = places[: whole * every].reshape(whole, every, -1).sum(axis=0)
    sums[:more] += places[whole * every :]
    counts = (whole + (np.arange(every) < more))[:, None]
    latest = ((sums - 0.5 * counts) / np.sqrt(counts / 12)).max(axis=0)
    found: Array = np.minimum(0.0, np.log(every) + special.log_ndtr(-latest))
    return found
