"""Where the ranks run, compared with what was asked."""

import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.spec.layout import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Host and cores one rank may run on."""

    host: str
    cores: tuple[int, ...]


def observe() -> Place:
    """Return the place of this process."""
    return Place(host=socket.gethostname(), cores=tuple(sorted(os.sched_getaffinity(0))))


def misplacements(layout: Layout, places: Sequence[Place]) -> tuple[str, ...]:
    """Return one sentence for everything about `places` (one per rank) that makes times unusable."""
    found: list[str] = []
    for host in sorted({place.host for place in places}):
        here = [(rank, place) for rank, place in enumerate(places) if place.host == host]
        available = len({core for _, place in here for core in place.cores})
        needed = len(here) * layout.threads
        if available < needed:
            found.append(f"{len(here)} ranks x {layout.threads} threads share {available} cores on {host}")
            continue
        taken = Counter(core for _, place in here for core in place.cores if len(place.cores) <= layout.threads)
        shared = sorted(core for core, ranks in taken.items() if ranks > 1)
        if shared:
            found.append(f"core {shared[0]} on {host} is bound to {taken[shared[0]]} ranks")
        short = [rank for rank, place in here if len(place.cores) < layout.threads]
        if short:
            found.append(
                f"rank {short[0]} may use {len(here[0][1].cores)} cores for {layout.threads} threads on {host}"
            )
    return tuple(found)
