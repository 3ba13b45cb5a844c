"""Horovod's words on ranks without MPI, which are all alike."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from harness.comm.world import World
from harness.horovod import mpi_exchange, ranks
from harness.horovod.mpi_exchange import MAX, MIN, PRODUCT, Exchange
from tests.labs.alike_ranks import AlikeComm


def ufunc(op, kind):
    """Return what combines the ranks' arrays in the place of MPI's operation."""
    return {MIN: np.minimum, MAX: np.maximum, PRODUCT: np.multiply}.get(op, np.add)


class AlikeSums:
    """Sums over the ranks of `comm`, which are all alike."""

    reductions = ()

    def __init__(self, comm: AlikeComm) -> None:
        self._size = comm.Get_size()

    def sum(self, tensors: Any, label: str, scale: float = 1.0, *, half: bool = False) -> list[tf.Tensor]:
        return [tensor * tf.cast(scale * self._size, tensor.dtype) for tensor in tensors]

    def sum_fused(self, tensors: Any, names: Any, label: str) -> list[tf.Tensor]:
        return self.sum(tensors, label)


def begin_horovod(monkeypatch: pytest.MonkeyPatch, rank: int = 0, size: int = 2) -> None:
    """Be rank `rank` of `size` ranks that are all alike, as after `hvd.init`, until `monkeypatch` is undone."""
    comm = AlikeComm(rank, size)
    world = World(comm=comm, rank=rank, size=size)  # type: ignore[arg-type]
    places = {"rank": rank, "size": size, "local_rank": 0, "local_size": size}
    exchange = Exchange(comm, ranks.host.watch)  # type: ignore[arg-type]
    found = ranks.Ranks(world=world, places=places, exchange=exchange, own_sums=AlikeSums(comm))  # type: ignore[arg-type]
    monkeypatch.setattr(ranks, "current", found)
    monkeypatch.setattr(mpi_exchange, "mpi_operation", ufunc)
