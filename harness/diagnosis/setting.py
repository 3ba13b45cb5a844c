"""Evidence in what the record says of the machine, the placement and the settings."""

import re

import numpy as np

from harness.analysis import numbers
from harness.base.cpu_contention import MOST_QUEUED
from harness.diagnosis.case import Case, Symptom
from harness.schema.sweep import Failure

_CONTENDED = 0.25  # of their time: TensorFlow's own threads wait 8 to 12 % for each other on a quiet core
_STOLEN = 0.02
_TCP = {"UCX_TLS": r"\btcp\b", "OMPI_MCA_btl": r"\btcp\b", "FI_PROVIDER": r"\b(?:tcp|sockets)\b"}
_FABRIC = {"UCX_TLS": r"\b(?:rc|dc|ud|ib)", "OMPI_MCA_btl": r"\b(?:openib|ofi)\b", "FI_PROVIDER": r"\b(?:verbs|psm)"}
_SINGLETON = re.compile(r"1 MPI ranks were started for a layout of (\d+)")


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
    named = {
        name: value
        for name, value in case.run.provenance.environment.items()
        if name.endswith(("_NUM_THREADS", "_PARALLELISM_THREADS")) and value.isdecimal()
    }
    if waiting - min(waiting, others) < _CONTENDED:
        return None
    most = case.run.point.layout.threads
    said = ", ".join(f"{name}={value}" for name, value in named.items() if int(value) > most)
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
    """Shared memory had no room for the sums."""
    return _noted(case, "shared memory (/dev/shm) has no room")


def no_compiler(case: Case) -> Symptom | None:
    """The sums go through Python because the operation could not be built."""
    return _noted(case, "numpy_function bridge is in use")


def _noted(case: Case, words: str) -> Symptom | None:
    note = next((note for note in case.run.notes if words in note), None)
    return None if note is None else Symptom(text=f"{note[0].upper()}{note[1:].rstrip('.')}.", cost=case.wire)


def slow_path(case: Case) -> Symptom | None:
    """Messages between hosts are told to take TCP although there is a faster network."""
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
