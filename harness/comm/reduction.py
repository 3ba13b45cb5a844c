"""Sums of tensors over all ranks, inside a TensorFlow graph."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from harness.comm.policies import needs_sync
from harness.errors import RunError, SharedError, UserError, unknown

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from harness.comm.world import World

CHOICES = ("native", "messages", "node-aware", "bridge")


class Reduction(Protocol):
    """One grouped allreduce: all tensors of a step in one call, so that no two calls can cross.

    `name` says what it is in the run record; `note` why it is not what was wanted, empty otherwise; `descends`
    whether it has `descend`, the fastest way from gradients to weights for plain gradient descent.
    """

    name: str
    note: str
    descends: bool

    def sum(self, tensors: "list[tf.Tensor]", scale: float = 1.0) -> "list[tf.Tensor]":
        """Return the element-wise sums over all ranks of scale * tensor, for use in a graph.

        All tensors are of one dtype, float32 or float64, and of known shapes; `scale` is this rank's own.
        """

    def descend(self, variables: "list[keras.Variable]", gradients: "list[tf.Tensor]", rate: "tf.Tensor") -> None:
        """Subtract rate times the sums over all ranks of the gradients from the variables, in one operation."""

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 2]: entry and exit (s, perf_counter) of every call since the last take."""

    def recent(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 4]: number, bytes, entry and exit of the last calls, oldest first.

        The exit is 0 while the call goes on. Any thread may ask at any time.
        """


def select(world: "World", largest: int, wire: str = "float32") -> Reduction:
    """Return the reduction for calls of up to `largest` bytes on `world`; `wire` as in `Workload`.

    HARNESS_REDUCTION chooses: ``native`` (default: the C++ operation, in shared memory where all ranks are on one
    host, else in the faster of the next two ways, by a short trial), ``messages`` (the operation, by MPI_Allreduce),
    ``node-aware`` (the operation: shared memory on each host, then MPI_Allreduce over one rank of each) or ``bridge``
    (through Python). Where the operation cannot be built on some rank, all take the bridge; the note says why.

    Raises:
        UserError: HARNESS_REDUCTION is something else.
        SharedError: the wire type needs the operation and there is none, on every rank.
    """
    reduction = _select(world, largest)
    if wire == "float32" or not needs_sync(world.size):
        return reduction
    from harness.comm.wire import WireReduction

    if not reduction.descends:
        why = reduction.note or "HARNESS_REDUCTION=bridge is set"
        raise SharedError(UserError(f"WIRE={wire} needs the native operation ({why}): leave WIRE out"))
    return WireReduction(reduction, wire)


def _select(world: "World", largest: int) -> Reduction:
    from harness.comm.bridge import BridgeReduction

    choice = os.environ.get("HARNESS_REDUCTION") or "native"
    if choice not in CHOICES:
        raise unknown("HARNESS_REDUCTION", choice, CHOICES)
    if choice == "bridge" or not needs_sync(world.size):
        return BridgeReduction(world.comm)
    library, failure = build_native()
    failures = [reason for reason in world.comm.allgather(failure) if reason]
    if library is None or failures:
        return BridgeReduction(world.comm, note=f"the slower numpy_function bridge is in use: {failures[0]}")
    from harness.comm.native.reduction import NativeReduction
    from harness.comm.trial import faster_way

    way, note = faster_way(world, library, largest) if choice == "native" else (choice, "")
    reduction = NativeReduction(world.comm, library, largest=largest, way=way)
    if choice == "node-aware" and reduction.way != choice:
        note = "node-aware sums need several hosts, one of them with several ranks: MPI_Allreduce is in use"
    reduction.note = note
    return reduction


def build_native() -> tuple[Path | None, str]:
    """Return the native operation's library, or None and the reason why there is none."""
    from harness.comm.native.build import build

    try:
        return build(), ""
    except RunError as error:
        return None, str(error)
