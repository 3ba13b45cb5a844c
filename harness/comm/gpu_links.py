"""How the GPUs of every two ranks of a host are joined, asked of NVML."""

import importlib.util
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from harness.comm.gpus import Gpu
from harness.comm.world import World
from harness.schema.gpu_link import GpuLink, JoinedBy
from harness.schema.record_notes import Note, NoteCode

_LEVELS = {
    0: JoinedBy.BOARD,
    10: JoinedBy.PCIE_SWITCH,
    20: JoinedBy.PCIE_SWITCHES,
    30: JoinedBy.PCIE_BRIDGE,
    40: JoinedBy.NUMA_NODE,
    50: JoinedBy.PROCESSORS,
}
"""NVML's numbers of `nvmlGpuTopologyLevel_t`."""
_NOT_INSTALLED = "nvidia-ml-py is not installed"
_NOT_SAID = "NVML does not say it of every pair"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLinks:
    """The links of all pairs of ranks of a host that NVML knows, on rank 0, and a note where it does not know all."""

    links: tuple[GpuLink, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankGpu:
    """The GPU of a rank, by its UUID."""

    rank: int
    uuid: str


def gather_links(world: World, gpu: Gpu | None) -> GpuLinks:
    """Return how the GPUs of all ranks are joined; on all ranks of `world` together, complete on rank 0 alone.

    The first rank of each host asks. All ranks have a `gpu`, or none.
    """
    if gpu is None:
        return GpuLinks()
    host = platform.node()
    places = world.comm.allgather((host, gpu.uuid))
    own_host = [RankGpu(rank=rank, uuid=uuid) for rank, (name, uuid) in enumerate(places) if name == host]
    links: list[GpuLink] = []
    reason = ""
    if own_host[0].rank == world.rank:
        links, reason = _ask(own_host)
    gathered = world.comm.gather((links, reason), root=0)
    if gathered is None:
        return GpuLinks()
    every = tuple(link for host_links, _ in gathered for link in host_links)
    missing = next((host_reason for _, host_reason in gathered if host_reason), "")
    notes = (Note(code=NoteCode.LINKS_NOT_KNOWN, values={"reason": missing}),) if missing else ()
    return GpuLinks(links=every, notes=notes)


def _ask(gpus: Sequence[RankGpu]) -> tuple[list[GpuLink], str]:
    """Return the links of all pairs of a host's `gpus`, and why there are fewer."""
    if len(gpus) < 2:
        return [], ""
    if not importlib.util.find_spec("pynvml"):
        return [], _NOT_INSTALLED
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], f"NVML does not start: {error}"
    try:
        return links_of(pynvml, gpus)
    finally:
        pynvml.nvmlShutdown()


def links_of(nvml: Any, gpus: Sequence[RankGpu]) -> tuple[list[GpuLink], str]:
    """Return the links of all pairs of a host's `gpus` by NVML, the module `pynvml`, and why there are fewer."""
    links = []
    reason = ""
    for first, second in combinations(gpus, 2):
        joined_by = find_joint(nvml, first.uuid, second.uuid)
        if joined_by is None:
            reason = _NOT_SAID
        else:
            links.append(GpuLink(ranks=(first.rank, second.rank), joined_by=joined_by))
    return links, reason


def find_joint(nvml: Any, first: str, second: str) -> JoinedBy | None:
    """Return what joins two GPUs of this host, by their UUIDs; None where NVML does not say, as of MIG instances."""
    if first == second:
        return JoinedBy.SAME_GPU
    try:
        handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in (first, second)]
        if _reach_by_nvlink(nvml, handles):
            return JoinedBy.NVLINK
        return _LEVELS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(*handles))
    except nvml.NVMLError:
        return None


def _reach_by_nvlink(nvml: Any, handles: Sequence[Any]) -> bool:
    """Tell whether two GPUs reach each other's memory by NVLink; a driver may not know the question."""
    try:
        status = nvml.nvmlDeviceGetP2PStatus(*handles, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except nvml.NVMLError:
        return False
    return bool(status == nvml.NVML_P2P_STATUS_OK)
