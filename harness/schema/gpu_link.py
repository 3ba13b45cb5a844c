"""GpuLink: how the GPUs of two ranks of one host are joined."""

from dataclasses import dataclass
from enum import StrEnum


class JoinedBy(StrEnum):
    """What two GPUs of a host reach each other by, the nearest first, by NVML's levels of topology."""

    SAME_GPU = "one GPU for both"
    NVLINK = "NVLink"
    BOARD = "one board"
    PCIE_SWITCH = "one PCIe switch"
    PCIE_SWITCHES = "several PCIe switches"
    PCIE_BRIDGE = "a PCIe host bridge"
    NUMA_NODE = "PCIe within a NUMA node"
    PROCESSORS = "PCIe and the link between processors"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLink:
    """Two ranks of one host, by their numbers, and what joins their GPUs. Ranks of different hosts have the network."""

    ranks: tuple[int, int]
    joined_by: JoinedBy
