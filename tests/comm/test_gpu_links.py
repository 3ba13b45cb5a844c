"""How ranks' GPUs are joined, by a stand-in for NVML: a node of four GPUs, two of them with NVLink."""

from itertools import combinations

import pytest

from harness.comm.gpu_links import GpuLinks, RankGpu, find_joint, gather_links, links_of
from harness.comm.world import World
from harness.schema.gpu_link import GpuLink, JoinedBy
from tests.labs.communicators import Alone

UUIDS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


class Nvml:
    """NVML of a node: `levels` by pairs of GPUs; `nvlink` are the pairs with NVLink, None for a driver without it."""

    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    class NVMLError(Exception):
        pass

    def __init__(self, levels: dict[tuple[str, str], int], nvlink: set[tuple[str, str]] | None) -> None:
        self._levels = levels
        self._nvlink = nvlink

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid.startswith("MIG-"):
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetP2PStatus(self, first: str, second: str, capability: int) -> int:
        assert capability == self.NVML_P2P_CAPS_INDEX_NVLINK
        if self._nvlink is None:
            raise self.NVMLError
        return 0 if (first, second) in self._nvlink else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, first: str, second: str) -> int:
        return self._levels[first, second]


def test_nvlink_comes_before_the_way_by_pcie() -> None:
    levels = dict.fromkeys(combinations(UUIDS, 2), 50) | {("GPU-a", "GPU-b"): 10, ("GPU-c", "GPU-d"): 40}
    gpus = [RankGpu(rank=4 + number, uuid=uuid) for number, uuid in enumerate(UUIDS)]
    links, reason = links_of(Nvml(levels, {("GPU-a", "GPU-b")}), gpus)
    assert reason == ""
    assert len(links) == 6
    assert links[0] == GpuLink(ranks=(4, 5), joined_by=JoinedBy.NVLINK)
    assert links[-1] == GpuLink(ranks=(6, 7), joined_by=JoinedBy.NUMA_NODE)
    assert {link.joined_by for link in links[1:-1]} == {JoinedBy.PROCESSORS}


@pytest.mark.parametrize(
    ("level", "joined_by"),
    [
        (0, JoinedBy.BOARD),
        (10, JoinedBy.PCIE_SWITCH),
        (20, JoinedBy.PCIE_SWITCHES),
        (30, JoinedBy.PCIE_BRIDGE),
        (40, JoinedBy.NUMA_NODE),
        (50, JoinedBy.PROCESSORS),
        (99, None),
    ],
)
def test_a_driver_without_nvlink_says_the_level(level: int, joined_by: JoinedBy | None) -> None:
    assert find_joint(Nvml({("GPU-a", "GPU-b"): level}, None), "GPU-a", "GPU-b") is joined_by


def test_ranks_on_one_gpu_are_told_apart_and_instances_not_known() -> None:
    nvml = Nvml({}, set())
    assert find_joint(nvml, "GPU-a", "GPU-a") is JoinedBy.SAME_GPU
    links, reason = links_of(nvml, [RankGpu(rank=0, uuid="MIG-1"), RankGpu(rank=1, uuid="MIG-2")])
    assert (links, bool(reason)) == ([], True)


def test_ranks_without_gpus_are_not_asked_for() -> None:
    assert gather_links(World(comm=Alone(), rank=0, size=1), None) == GpuLinks()
