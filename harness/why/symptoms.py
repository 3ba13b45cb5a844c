"""What shows a known cause in one launch: in what the record says of machine, placement and settings, and in times."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from harness.analysis import units
from harness.analysis.launch_frames import EpochTimes, epoch_times
from harness.analysis.sync_calls import Calls
from harness.analysis.time_parts import slow_rank
from harness.base.cpu_contention import MOST_QUEUED
from harness.base.exit_codes import SEPARATE_WORLDS
from harness.schema.record import Failure, RunRecord
from harness.schema.record_notes import NoteCode
from harness.why.overheads import FAR_OUT, skew_shares

# Single calls to which one rank comes far later than it usually does: regular delays, and irregular ones.

Array = NDArray[np.float64]
SHORTEST = 5  # calls: of events that are closer one cannot say that they are regular
_EVENTS = 5  # delays of one rank, of a regular one in every epoch
_MOST_CALLS = 2000  # of an epoch that are examined
_MOST_EPOCHS = 5
_MOST_RANKS = 16  # those that come late by most
_CHANCE_REGULAR = 1e-5  # that calls without a period seem as regular
_CHANCE_RANK = 1e-4  # that so many of the late calls are one rank's


@dataclass(frozen=True, kw_only=True, slots=True)
class RareDelay:
    """Rank `rank` comes `seconds` later than usual to `count` of `calls`, one in each `period`; 0 without a period."""

    rank: int
    seconds: float
    count: int
    calls: int
    period: int


def irregular_delays(epochs: Sequence[Array]) -> RareDelay | None:
    """Return the delays of the rank that comes far too late most often, None where chance would give it as many.

    `epochs` as in `regular_delays`.
    """
    late = np.concatenate(epochs)
    low, high = np.percentile(late, [25, 75], axis=0)
    far = late > high + FAR_OUT * (high - low)
    ranks = late.shape[1]
    rank = int((late * far).sum(axis=0).argmax())
    if far[:, rank].sum() < _EVENTS:
        return None
    usual = float(np.median(late[:, rank]))
    typical = float(np.median(late[far[:, rank], rank]))
    far &= late >= (usual + typical) / 2  # smaller ones, which every machine has, do not count
    far[1:] &= ~far[:-1]  # calls in a row are one event
    counts = far.sum(axis=0)
    if counts[rank] < _EVENTS:
        return None
    test = stats.binomtest(int(counts[rank]), int(counts.sum()), 1 / ranks, alternative="greater")
    if ranks * float(test.pvalue) > _CHANCE_RANK:
        return None
    events = np.flatnonzero(far[:, rank])
    gaps = np.diff(events)
    gap = int(np.median(gaps))
    regular = bool(np.median(np.abs(gaps - gap)) <= 0.05 * gap) and gap >= SHORTEST
    return RareDelay(
        rank=rank,
        seconds=float(np.median(late[events, rank])) - usual,
        count=len(events),
        calls=len(far),
        period=gap if regular else 0,
    )


def regular_delays(epochs: Sequence[Array]) -> RareDelay | None:
    """Return the clearest regular delay, None where chance would give one as clear.

    `epochs` have how much later than the others each rank came, in seconds, [calls, ranks]. Each series is folded by
    every period. For each call of the period this gives the mean place among all calls of the epoch (by their order, so
    that no single call counts more than another). The latest of these is compared with what the same number of calls
    would give by chance: the normal limit of the mean of uniform numbers, for as many calls as the period has. Epochs,
    which need not begin at the same call of a period, are combined by Fisher's method, periods and ranks by
    Bonferroni's.
    """
    examined = [epoch[:_MOST_CALLS] for epoch in epochs[:_MOST_EPOCHS] if len(epoch) >= SHORTEST * _EVENTS]
    if not examined:
        return None
    ranks = np.argsort(sum(epoch.clip(min=0).mean(axis=0) for epoch in examined))[-_MOST_RANKS:]
    places = [(stats.rankdata(epoch[:, ranks], axis=0) - 0.5) / len(epoch) for epoch in examined]
    periods = range(SHORTEST, min(map(len, examined)) // _EVENTS + 1)
    logarithms = np.array([_chances_of_epochs(places, period) for period in periods])
    chances = special.gammaincc(len(places), -logarithms)  # of chi squared with two degrees of freedom an epoch
    row, column = np.unravel_index(chances.argmin(), chances.shape)
    if chances[row, column] * len(periods) * examined[0].shape[1] > _CHANCE_REGULAR:
        return None
    period = periods[row]
    rank = int(ranks[column])
    late = [epoch[:, rank] for epoch in epochs if len(epoch) >= period]
    return _delay_of_period(late, rank, period)


def _delay_of_period(epochs: Sequence[Array], rank: int, period: int) -> RareDelay:
    """Return the delay of `rank`: in each epoch [calls] of the latest call of the `period`, over all other calls."""
    late: list[Array] = []
    usual: list[Array] = []
    for epoch in epochs:
        phases = [np.median(epoch[phase::period]) for phase in range(period)]
        is_latest = np.arange(len(epoch)) % period == int(np.argmax(phases))
        late.append(epoch[is_latest])
        usual.append(epoch[~is_latest])
    late_calls = np.concatenate(late)
    usual_calls = np.concatenate(usual)
    return RareDelay(
        rank=rank,
        seconds=float(np.median(late_calls) - np.median(usual_calls)),
        count=len(late_calls),
        calls=len(late_calls) + len(usual_calls),
        period=period,
    )


def _chances_of_epochs(epochs: Sequence[Array], period: int) -> Array:
    """Return the sum over epochs of the logarithms that `_chances` gives, for every rank."""
    total: Array = np.sum([_chances(places, period) for places in epochs], axis=0)
    return total


def _chances(places: Array, period: int) -> Array:
    """Return the logarithm of the probability that some call of the period is as late by chance, for every rank."""
    whole_periods, rest = divmod(len(places), period)
    sums = places[: whole_periods * period].reshape(whole_periods, period, -1).sum(axis=0)
    sums[:rest] += places[whole_periods * period :]
    counts = (whole_periods + (np.arange(period) < rest))[:, None]
    latest = ((sums - 0.5 * counts) / np.sqrt(counts / 12)).max(axis=0)
    chances: Array = np.minimum(0.0, np.log(period) + special.log_ndtr(-latest))
    return chances


# One launch as the known causes look at it: its record, its calls, and which parts of its epochs went where.


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch. `run` has its epochs, `calls` are empty where none are recorded, `base` ran on the fewest ranks."""

    run: RunRecord
    calls: Sequence[Calls] = ()
    base: RunRecord | None = None

    @cached_property
    def times(self) -> EpochTimes:
        """The times of the epochs."""
        return epoch_times(self.run)

    @cached_property
    def total(self) -> float:
        """Seconds of all epochs, the slowest rank of each."""
        return float(self.times.seconds.max(axis=1).sum())

    def part(self, seconds: Array) -> float:
        """Return the part of the epochs that `seconds` [epochs, ranks] take, mean over ranks."""
        return float(seconds.mean(axis=1).sum() / self.total)

    @cached_property
    def skew(self) -> float:
        """The part of the epochs that ranks wait for the last one."""
        return self.part(self.times.skew)

    @cached_property
    def wire(self) -> float:
        """The part of the epochs that the allreduces themselves take; unknown parts of synchronisation count."""
        return self.part(self.times.sync) - self.skew

    @cached_property
    def input(self) -> float:
        """The part of the epochs that goes into rows."""
        return self.part(self.times.input)

    @cached_property
    def skew_causes(self) -> dict[str, float]:
        """Which part of the epochs each of the SKEW_CAUSES takes."""
        shares = skew_shares(self.calls, [rank.batch for rank in self.run.ranks]) if self.entries.size else {}
        return {cause: share * self.skew for cause, share in shares.items()}

    @cached_property
    def entries(self) -> Array:
        """When every rank came to every call, [calls, ranks]."""
        return np.concatenate([np.empty((0, len(self.run.ranks))), *(epoch.entry for epoch in self.calls)])

    @property
    def hosts(self) -> set[str]:
        """The hosts of the ranks."""
        return {rank.host for rank in self.run.ranks}


_CONTENDED = 0.25  # of their time: TensorFlow's own threads wait 8 to 12 % for each other on a quiet core
_STOLEN = 0.02
_TCP = {"UCX_TLS": r"\btcp\b", "OMPI_MCA_btl": r"\btcp\b", "FI_PROVIDER": r"\b(?:tcp|sockets)\b"}
_FABRIC = {"UCX_TLS": r"\b(?:rc|dc|ud|ib)", "OMPI_MCA_btl": r"\b(?:openib|ofi)\b", "FI_PROVIDER": r"\b(?:verbs|psm)"}
_LEAST_COST = 0.01  # part of an epoch from which a cause is reported
_INPUT = 0.05
_EARLY = 0.1  # part of an epoch's calls in which the tuner of tf.data learns
_WIRE = 0.25
_SLOWER = 1.05  # of the last third of the epochs to the first
_LEAST_DELAY = 0.001  # part of an epoch


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
        ranks = [rank for rank in case.run.ranks if rank.host == host]
        cores = {core for rank in ranks for core in rank.cores}
        needed = sum(rank.threads for rank in ranks)
        if len(cores) < needed:
            text = f"{units.plural(len(ranks), 'rank')} on {host} need {needed} cores and may run on {len(cores)}."
            return Symptom(text=text, cost=_waiting(case), who=host)
    return None


def bound_together(case: Case) -> Symptom | None:
    """Ranks are bound to the same core though there are enough."""
    for host in sorted(case.hosts):
        owner: dict[int, int] = {}
        bound = [rank for rank in case.run.ranks if rank.host == host and len(rank.cores) <= rank.threads]
        for rank in bound:
            for core in rank.cores:
                if core in owner:
                    text = f"Ranks {owner[core]} and {rank.rank} are both bound to core {core} of {host}."
                    return Symptom(text=text, cost=_waiting(case), who=host)
                owner[core] = rank.rank
    return None


def contending_threads(case: Case) -> Symptom | None:
    """The ranks' own threads wait for each other: more of them than cores.

    Threads of an interleaved launch also wait for the launches beside it, so that there only a setting shows this.
    """
    waiting = _waiting(case)
    others = case.run.provenance.other_load
    if waiting - min(waiting, others) < _CONTENDED:
        return None
    most = case.run.point.layout.threads
    too_many = [
        f"{name}={value}"
        for name, value in case.run.provenance.environment.items()
        if name.endswith(("_NUM_THREADS", "_PARALLELISM_THREADS")) and value.isdecimal() and int(value) > most
    ]
    if case.run.block and not too_many:
        return None
    settings = ", ".join(too_many) or "no setting asks for more threads than a rank has cores"
    text = f"Threads of the ranks wait {units.percent(waiting)} of their time for a core that no other program has"
    return Symptom(text=f"{text} ({settings}).", cost=waiting)


def other_programs(case: Case) -> Symptom | None:
    """Other processes have the ranks' cores."""
    load = case.run.provenance.other_load
    waits = [min(1.0, rank.queued_share, load) for rank in case.run.ranks]
    if max(waits) <= MOST_QUEUED:
        return None
    rank = int(np.argmax(waits))
    waited = units.percent(case.run.ranks[rank].queued_share)
    text = (
        f"Other programs keep {load:.2f} cores busy; rank {rank} waits {waited} of its time for a core, also for its "
    )
    text += "own threads. Others cost at most the smaller of the two."
    if case.run.block:
        text += " The rounds that this met are left out, but for numbers including interference."
    return Symptom(text=text, cost=max(waits))


def stolen(case: Case) -> Symptom | None:
    """The hypervisor gives the cores to other guests."""
    share = max(rank.stolen_share for rank in case.run.ranks)
    if share < _STOLEN:
        return None
    return Symptom(text=f"The hypervisor gave {units.percent(share, 1)} of the cores' time to others.", cost=share)


def small_segments(case: Case) -> Symptom | None:
    """Shared memory had no room for the allreduce."""
    return _noted(case, NoteCode.NO_SHARED_MEMORY)


def no_compiler(case: Case) -> Symptom | None:
    """The allreduce goes through Python because the operation could not be built."""
    return _noted(case, NoteCode.BRIDGE)


def _noted(case: Case, code: NoteCode) -> Symptom | None:
    note = case.run.note(code)
    if note is None:
        return None
    sentence = str(note)
    return Symptom(text=f"{sentence[0].upper()}{sentence[1:].rstrip('.')}.", cost=case.wire)


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
    if failure.exit_code != SEPARATE_WORLDS:
        return None
    ranks = failure.point.layout.ranks
    return Symptom(text=f"Each of {ranks} ranks was a world of one: the launcher and the MPI library do not match.")


def killed_in_shared_memory(failure: Failure) -> Symptom | None:
    """A rank touched shared memory that is not there."""
    if not re.search(r"Bus error|SIGBUS|signal 7\b", f"{failure.reason}\n{failure.tail}"):
        return None
    return Symptom(text="A rank was ended by a bus error: shared memory (/dev/shm) is full.")


def unequal_rows(case: Case) -> Symptom | None:
    """Ranks have unequal rows of a step."""
    batch = [rank.batch for rank in case.run.ranks]
    cost = case.skew_causes.get("rows", 0.0)
    if cost < _LEAST_COST:
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
    slow = slow_rank(case.run, case.times)
    skew_causes = case.skew_causes
    if slow is None or (skew_causes and skew_causes["rank"] < skew_causes["rare"]):
        return None
    text = (
        f"Rank {slow.rank} of {slow.ranks} on {slow.host} is slow: it computed {slow.ratio:.2f} times as long as "
        f"the others, which waited for it {units.percent(slow.waited)} of an epoch."
    )
    return Symptom(text=text, cost=skew_causes.get("rank", case.skew), who=f"{slow.rank}/{slow.ranks}")


def tuner(case: Case) -> Symptom | None:
    """Ranks wait for rows mostly in the first calls of every epoch: tf.data learns again how much to decode ahead."""
    early_seconds = 0.0
    all_seconds = 0.0
    for epoch in case.calls:
        waited = epoch.input.mean(axis=1)
        early_seconds += float(waited[: max(1, round(_EARLY * len(waited)))].sum())
        all_seconds += float(waited.sum())
    cost = early_seconds / case.total
    if cost < _LEAST_COST or early_seconds < 0.5 * all_seconds:
        return None
    share = units.percent(early_seconds / all_seconds)
    text = f"{share} of the waiting for rows is in the first tenth of each epoch's steps."
    return Symptom(text=text, cost=cost)


def input_bound(case: Case) -> Symptom | None:
    """Ranks wait for rows."""
    if case.input < _INPUT:
        return None
    return Symptom(text=f"Ranks wait for rows {units.percent(case.input)} of an epoch.", cost=case.input)


def little_work(case: Case) -> Symptom | None:
    """The allreduces take as long as what is computed between them."""
    if case.wire < _WIRE:
        return None
    steps = sum(epoch.steps for epoch in case.run.epochs)
    step_seconds = case.total / steps
    wire = units.seconds(case.wire * step_seconds)
    computing = units.seconds((1 - case.wire - case.skew) * step_seconds)
    batch = [rank.batch for rank in case.run.ranks]
    rows = units.span(min(batch), max(batch))
    size = units.memory(case.run.weights.bytes)
    text = f"A step computes {computing} on {rows} rows a rank and reduces {size} in {wire}."
    return Symptom(text=text, cost=case.wire)


def partial_batch(case: Case) -> Symptom | None:
    """The last step of an epoch has few rows and costs nearly as much as any other."""
    run = case.run
    rows = sum(rank.rows for rank in run.ranks) % run.global_batch
    if run.point.workload.drop_remainder or not rows or run.point.workload.sync != "gradients":
        return None
    steps = [np.diff(epoch.exit.max(axis=1)) for epoch in case.calls if len(epoch.exit) > 2]
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
    first = computed[:third]
    last = computed[-third:]
    ratio = float(np.median(last) / np.median(first))
    trend = stats.kendalltau(np.arange(len(computed)), computed).pvalue
    if ratio < _SLOWER or first.max() >= last.min() or trend > 0.01:
        return None
    governor = case.run.provenance.system.get("frequency governor", "")
    reason = f" The governor of the frequency is {governor}." if governor else ""
    text = f"Computation of an epoch grew by {units.percent(ratio - 1)} from the first third to the last.{reason}"
    return Symptom(text=text, cost=float(1 - np.median(first) * len(computed) / computed.sum()))


def unsure_clocks(case: Case) -> Symptom | None:
    """The clocks of the hosts are known too badly to tell who waited for whom."""
    error = max(rank.clock_error_s for rank in case.run.ranks)
    drift = max(abs(rank.clock_drift) for rank in case.run.ranks)
    calls = max(1, len(case.entries))
    call_seconds = (case.skew + case.wire) * case.total / calls
    if drift <= 1e-4 and (error <= 0 or error < 0.5 * call_seconds):
        return None
    text = (
        f"Clocks of the hosts may be off by {units.seconds(error)} and drift by {1e6 * drift:.0f} µs a second, a "
        f"call takes {units.seconds(call_seconds)}: who waited for whom is uncertain."
    )
    return Symptom(text=text)


def worse_learning(case: Case) -> Symptom | None:
    """The same epochs end with a much worse loss than on the fewest ranks, whose global batch is smaller."""
    run, base = case.run, case.base
    if base is None or run.point.workload.sync != "gradients" or run.global_batch <= base.global_batch:
        return None
    if len(run.epochs) != len(base.epochs):
        return None
    scores = _scores(run)
    base_scores = _scores(base)
    worse_loss = scores["loss"] > 1.25 * base_scores["loss"] or not np.isfinite(scores["loss"])
    as_accurate = np.isfinite(scores["accuracy"]) and scores["accuracy"] > base_scores["accuracy"] - 0.01
    if not worse_loss or as_accurate:
        return None
    scaling = "scaled with the ranks" if run.point.workload.rate_scaling == "linear" else "not scaled"
    text = (
        f"With {run.global_batch / base.global_batch:g} times the global batch and the learning rate {scaling} the "
        f"training loss ends at {units.significant(scores['loss'])} instead of "
        f"{units.significant(base_scores['loss'])}, test accuracy at {units.percent(scores['accuracy'], 1)} "
        f"instead of {units.percent(base_scores['accuracy'], 1)}."
    )
    return Symptom(text=text)


def _scores(run: RunRecord) -> dict[str, float]:
    last = run.epochs[-1]
    values = {"loss": last.train_loss, "accuracy": last.test_accuracy}
    return {name: float("nan") if value is None else float(value) for name, value in values.items()}


def rare_delays(case: Case) -> Symptom | None:
    """Single calls to which one rank comes far later than it usually does, more of them than chance gives it.

    Regular ones are found among larger noise too (`regular_delays`). Others are far beyond Tukey's outer fences of how
    much later than the median of the others each rank came. By chance every rank has as many of these calls as any
    other (binomial test).
    """
    lateness = [_later_than_others(epoch.between[:-1]) for epoch in case.calls]
    ranks = len(case.run.ranks)
    delay = regular_delays(lateness)
    cost = delay.count * delay.seconds * (ranks - 1) / ranks / case.total if delay else 0.0
    if delay is None or cost < _LEAST_DELAY:
        cost = case.skew_causes.get("rare", 0.0)
        delay = irregular_delays(lateness) if cost >= _LEAST_DELAY else None
    if delay is None:
        return None
    when = f"every {delay.period} calls, so the program causes it" if delay.period else "irregularly, as interrupts are"
    text = (
        f"Rank {delay.rank} of {ranks} on {case.run.ranks[delay.rank].host} comes {units.seconds(delay.seconds)} "
        f"late to {delay.count} of {delay.calls} calls, {when}; all others wait for it."
    )
    return Symptom(text=text, cost=cost, who=f"{delay.rank}/{ranks}")


def _later_than_others(computed: Array) -> Array:
    """Return how much longer each rank computed than the median of the others; both [calls, ranks], in seconds."""
    if computed.shape[1] == 2:
        return computed - computed[:, ::-1]
    later: Array = computed - np.median(computed, axis=1, keepdims=True)
    return later
