"""A rank of a script without MPI: what it exchanges comes back as from ranks that are all alike."""

from pathlib import Path
from types import SimpleNamespace

from harness.comm.hang import HangWatch
from harness.comm.world import World
from harness.transparent.batch_rows import Rows
from harness.transparent.collectives import Collectives
from harness.transparent.witness import Alone


def lone_collectives() -> Collectives:
    """Return what the only rank of a launch exchanges with."""
    world = World(comm=Alone(), rank=0, size=1)  # type: ignore[arg-type]
    rows = Rows(0, 1, SimpleNamespace(present=False))  # type: ignore[arg-type]
    return Collectives(world, rows, HangWatch(world, Path(), 0.0))
