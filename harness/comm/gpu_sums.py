"""Whether ranks sum by NCCL on their GPUs, or through the host's memory and why."""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from harness.base.errors import RunError, SharedError
from harness.comm.exchange_order import GPU
from harness.comm.nccl_library import NcclLibrary, load_nccl
from harness.comm.nccl_reduction import NcclReduction
from harness.comm.world import World
from harness.schema.record_notes import Note, NoteCode


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuOfRank:
    """What a rank says of itself before its ranks sum by NCCL.

    `has_gpu`: TensorFlow sees one. `place` is its host and PCI address. `missing_because` says why NCCL cannot be used
    there, empty where it can.
    """

    has_gpu: bool
    place: tuple[str, str] = ("", "")
    missing_because: str = ""


def open_nccl(world: World, *, shared: bool) -> NcclReduction | Note | None:
    """Return the sums by NCCL of the ranks of `world`, a note why there are none, or None where no rank has a GPU.

    On all ranks together, with the same answer. `shared` permits several ranks on one GPU, which NCCL refuses: it is
    told that each is on a host of its own, so that they exchange through sockets. That tests function, never speed.
    """
    gpus = world.comm.allgather(_own_gpu())
    reason = reason_against(gpus, shared=shared)
    if reason is None:
        return None
    if not reason:
        if shared and _sharing(gpus):
            os.environ["NCCL_HOSTID"] = f"{platform.node()}-{world.rank}"
        try:
            return world.on_all(lambda: NcclReduction(world.comm, load_nccl()))
        except SharedError as shared_error:
            reason = str(shared_error.error)
    return Note(code=NoteCode.STAGED, values={"reason": reason})


def reason_against(gpus: Sequence[GpuOfRank], *, shared: bool) -> str | None:
    """Return why the ranks with these `gpus` do not sum by NCCL, empty where they can, None where there is no GPU."""
    without = [rank for rank, gpu in enumerate(gpus) if not gpu.has_gpu]
    if len(without) == len(gpus):
        return None
    if without:
        return f"rank {without[0]} has no GPU"
    for rank, gpu in enumerate(gpus):
        if gpu.missing_because:
            return f"{gpu.missing_because} (rank {rank})"
    sharing = _sharing(gpus)
    if sharing and not shared:
        ranks = " and ".join(map(str, sharing))
        return (
            f"ranks {ranks} share a GPU, which NCCL refuses; HARNESS_REDUCTION=nccl has them sum, to test function only"
        )
    return ""


def _sharing(gpus: Sequence[GpuOfRank]) -> list[int]:
    """Return the ranks that share the first GPU that ranks share, none where each has its own."""
    counts = Counter(gpu.place for gpu in gpus)
    shared = next((place for place, count in counts.items() if count > 1), None)
    return [rank for rank, gpu in enumerate(gpus) if gpu.place == shared]


def _own_gpu() -> GpuOfRank:
    if not tf.config.list_logical_devices("GPU"):
        return GpuOfRank(has_gpu=False)
    if not tf.executing_eagerly():
        return GpuOfRank(has_gpu=True, missing_because="eager execution is switched off")
    try:
        bus = _bus_address(load_nccl())
    except (RunError, tf.errors.OpError) as error:
        return GpuOfRank(has_gpu=True, missing_because=str(error))
    return GpuOfRank(has_gpu=True, place=(platform.node(), bus))


def _bus_address(library: NcclLibrary) -> str:
    with tf.device(GPU):
        address: bytes = library.operations.harness_nccl_device().numpy()
    return address.decode()
