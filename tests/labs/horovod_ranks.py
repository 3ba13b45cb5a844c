"""Horovod's words on ranks without MPI, which are all alike."""

import numpy as np
import pytest

from harness.comm.world import World
from harness.horovod import mpi_exchange, process_sets
from harness.horovod.mpi_exchange import MAX, MIN, PRODUCT
from tests.labs.alike_ranks import AlikeComm


def ufunc(op, kind):
    """Return what combines the ranks' arrays in the place of MPI's operation."""
    return {MIN: np.minimum, MAX: np.maximum, PRODUCT: np.multiply}.get(op, np.add)


def begin_horovod(monkeypatch: pytest.MonkeyPatch, rank: int = 0, size: int = 2) -> None:
    """Be rank `rank` of `size` ranks that are all alike, as after `hvd.init`, until `monkeypatch` is undone."""
    comm = AlikeComm(rank, size)
    world = World(comm=comm, rank=rank, size=size)  # type: ignore[arg-type]
    everyone = process_sets.global_process_set
    places = dict.fromkeys(("local_rank", "cross_rank"), 0)
    places |= {"rank": rank, "size": size, "local_size": size, "cross_size": 1, "is_homogeneous": 1}
    for name, value in (("ranks", list(range(size))), ("process_set_id", 0), ("_exchange", None), ("_sums", None)):
        monkeypatch.setattr(everyone, name, value)
    everyone.open(0, comm)
    ranks = process_sets._Ranks(world=world, places=places, joins=True, sets={0: everyone})
    monkeypatch.setattr(process_sets, "_current", ranks)
    monkeypatch.setattr(mpi_exchange, "_operation", ufunc)
