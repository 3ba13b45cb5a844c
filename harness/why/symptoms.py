"""What shows a known cause in one launch: in what the record says of machine, placement and settings, and in times."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from harness.analysis import units
from harness.analysis.time_parts import slow_rank
from harness.base.cpu_contention import MOST_QUEUED
from harness.base.exit_codes import SEPARATE_WORLDS
from harness.schema.launch_failure import Failure
from harness.schema.record import RunRecord
from harness.schema.record_notes import NoteCode
from harness.why.delays import irregular_delays, regular_delays
from harness.why.diagnosed_launch import Case

Array = NDArray[np.float64]
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
    """The ranks' own threads wait for each other: more of them than cores."""
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
    settings = f" ({', '.join(too_many)})" if too_many else ""
    text = f"Threads of the ranks wait {units.percent(waiting)} of their time for a core that no other program has"
    return Symptom(text=f"{text}{settings}.", cost=waiting)


def other_programs(case: Case) -> Symptom | None:
    """Other processes have the ranks' cores."""
    load = case.run.provenance.other_load
    waits = [min(rank.queued_share, load) for rank in case.run.ranks]
    if max(waits) <= MOST_QUEUED:
        return None
    rank = int(np.argmax(waits))
    text = f"Other programs keep {load:.2f} cores busy; rank {rank} waits {units.percent(waits[rank])} of its time."
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
