"""Ranks without MPI that are all alike: what one of them gives, each of the others gives too."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from harness.comm.hang import HangWatch
from harness.comm.world import World
from harness.schema.own_code import find_policy
from harness.transparent.batch_rows import Rows
from harness.transparent.collectives import Collectives
from harness.transparent.patch import OwnRows
from harness.transparent.replica_variables import ReplicaVariables
from harness.transparent.run_settings import RunSettings
from harness.transparent.runtime import Runtime
from harness.transparent.witness import NoWitness


class AlikeComm:
    """The communicator of rank `rank` of `size` ranks that all give the same."""

    def __init__(self, rank: int = 0, size: int = 2) -> None:
        self._rank = rank
        self._size = size

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size

    def Barrier(self) -> None:
        """Wait for nobody."""

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def allgather(self, value: Any) -> list[Any]:
        return [value] * self._size

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        return [value] * self._size if self._rank == root else None

    def Bcast(self, array: Any, root: int = 0) -> None:
        """Leave `array` as it is."""

    def Allreduce(self, values: Any, total: Any, op: Any) -> None:
        """Combine `values` with themselves by the ufunc `op`."""
        total[...] = op.reduce([values] * self._size)

    def Allgather(self, values: Any, result: Any) -> None:
        """Put `values` into each row of `result`."""
        result[...] = values

    def Allgatherv(self, values: Any, result: Any) -> None:
        """Put `values` together as many times as there are ranks."""
        result[0][...] = np.tile(values, self._size)


class AlikeCollectives(Collectives):
    """Sums and means over ranks that are all alike, in graphs too."""

    def sum(self, tensors: Any, label: str, scale: float = 1.0, *, half: bool = False) -> list[tf.Tensor]:
        return [tensor * tf.cast(scale * self.world.size, tensor.dtype) for tensor in tensors]

    def gather_rows(self, tensors: Any, label: str) -> list[tf.Tensor]:
        return [tf.concat([tensor] * self.world.size, 0) for tensor in tensors]


def alike_runtime(rank: int = 0, size: int = 2, **settings: Any) -> Runtime:
    """Return the state of rank `rank` of `size` ranks that are all alike; `settings` are those of `RunSettings`."""
    world = World(comm=AlikeComm(rank, size), rank=rank, size=size)  # type: ignore[arg-type]
    run_settings = RunSettings(**settings)
    own_rows = OwnRows(run_settings)
    rows = Rows(rank, size, own_rows)
    alone = World(comm=world.comm, rank=rank, size=1)  # so that the C++ part is not compiled
    collectives = AlikeCollectives(alone, rows, HangWatch(world, Path(), 0.0))
    collectives.world = world
    witness = NoWitness()
    variables = ReplicaVariables(world, rows, collectives, witness, find_policy(run_settings.sync))
    return Runtime(
        world=world,
        settings=run_settings,
        own_rows=own_rows,
        rows=rows,
        collectives=collectives,
        variables=variables,
        witness=witness,
    )
