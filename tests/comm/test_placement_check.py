"""What makes a launch's times unusable: where its ranks ran, what held them back, and who else used their GPUs."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.cores import physical_cores, throttled_s
from harness.base.cpu_contention import CpuUsage, Delays
from harness.base.turns import BLOCK
from harness.comm import gpus
from harness.comm.gpus import computing_processes, processes_beside
from harness.comm.placement_check import (
    MOST_THROTTLED,
    RankPlace,
    misplacements,
    observe,
    occupied_gpus,
    shared_gpus,
    throttled_hosts,
)
from harness.schema.layout import Layout
from tests.labs.factories import make_ranks

HYPERTHREADS = 64
"""CPUs 0 and 64, 1 and 65, ... of the hosts of these tests are hardware threads of one core."""


def place(*cpus: int, host: str = "a", node: str = "") -> RankPlace:
    """Return the place of a rank that may run on `cpus`."""
    physical = tuple(cpu % HYPERTHREADS for cpu in cpus)
    return RankPlace(host=host, cores=cpus, node=node or host, physical=physical)


TWO_THREADS = Layout(nodes=1, ranks_per_node=2, threads=2)
TWO_RANKS = Layout(nodes=1, ranks_per_node=2)


@pytest.mark.parametrize(
    ("layout", "places"),
    [
        (TWO_RANKS, [place(0), place(1)]),
        (TWO_RANKS, [place(0, 64), place(1, 65)]),  # bound to a whole core each
        (TWO_RANKS, [place(0, 1), place(0, 1)]),  # not bound
        (TWO_THREADS, [place(0, 1), place(2, 3)]),
        (TWO_THREADS, [place(0, 64, 1, 65), place(2, 3)]),
        (Layout(nodes=2), [place(0, host="a"), place(0, host="b")]),
    ],
)
def test_ranks_with_cores_of_their_own_are_placed_right(layout: Layout, places: list[RankPlace]) -> None:
    assert misplacements(layout, places) == ()


def test_two_ranks_on_the_hardware_threads_of_one_core_share_it() -> None:
    (fault,) = misplacements(TWO_RANKS, [place(0), place(64)])
    assert "2 ranks x 1 threads share 1 physical cores on a" in fault


def test_ranks_that_are_bound_to_one_core_are_named_with_it() -> None:
    places = [place(3), place(1), place(65), place(2)]
    (fault,) = misplacements(Layout(nodes=1, ranks_per_node=4), [*places[:3], place(2, 4)])
    assert "ranks 1 and 2" in fault
    assert "core 1 on a" in fault


def test_a_rank_bound_to_both_hardware_threads_is_bound_to_their_core() -> None:
    (fault,) = misplacements(Layout(nodes=1, ranks_per_node=3), [place(0, 64), place(0, 64), place(1, 2)])
    assert "ranks 0 and 1" in fault


def test_hardware_threads_of_one_core_are_no_cores_for_two_threads() -> None:
    (fault,) = misplacements(TWO_THREADS, [place(0, 1, 2), place(3, 67)])
    assert "rank 1 may use 1 physical cores for 2 threads on a" in fault
    (alone,) = misplacements(Layout(nodes=1, threads=2), [place(5, 69)])
    assert "share 1 physical cores" in alone


def test_the_rank_with_too_few_cores_is_named_with_its_own_number_of_them() -> None:
    (fault,) = misplacements(TWO_THREADS, [place(0, 1, 2), place(3)])
    assert "rank 1 may use 1 physical cores for 2 threads" in fault


def test_without_siblings_each_cpu_is_a_core() -> None:
    places = [RankPlace(host="a", cores=(0,)), RankPlace(host="a", cores=(64,))]
    assert misplacements(TWO_RANKS, places) == ()
    (fault,) = misplacements(TWO_RANKS, [places[0], places[0]])
    assert "share 1 physical cores" in fault


def test_a_host_without_enough_cores_is_named() -> None:
    places = [place(0, host="a"), place(1, host="a"), place(0, host="b"), place(0, host="b")]
    (fault,) = misplacements(Layout(nodes=2, ranks_per_node=2), places)
    assert fault.endswith("on b")


def test_more_ranks_than_cores_of_a_part_of_the_host_are_named_though_the_host_has_enough() -> None:
    near = [place(*range(8)) for _ in range(12)]
    far = [place(*range(8, 16)) for _ in range(4)]
    (fault,) = misplacements(Layout(nodes=1, ranks_per_node=16), [*near, *far])
    assert "12 ranks" in fault
    assert "8 physical cores" in fault
    apart = [place(*range(16)) for _ in range(8)] + [place(*range(8)) for _ in range(8)]
    assert misplacements(Layout(nodes=1, ranks_per_node=16), apart) == ()


def test_nodes_count_where_a_batch_system_placed_the_ranks() -> None:
    layout = Layout(nodes=2, ranks_per_node=2)
    places = [place(core, host="a") for core in range(3)] + [place(0, host="b")]
    (fault,) = misplacements(layout, places, by_nodes=True)
    assert "3 on a, 1 on b" in fault
    assert misplacements(layout, places) == ()
    uneven = Layout(nodes=2, ranks_per_node=3, last_node=1)
    assert misplacements(uneven, places, by_nodes=True) == ()


def test_the_core_of_a_cpu_is_read_from_the_kernels_topology(tmp_path: Path) -> None:
    for cpu, siblings in ((0, "0,64"), (1, "1,65"), (2, "2-3"), (3, "2-3"), (64, "0,64")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores((0, 1, 2, 3, 64), tmp_path) == (0, 1, 2, 2, 0)
    assert physical_cores((0, 65), tmp_path) == ()  # of one the system says nothing


def test_a_rank_sees_the_cores_of_its_own_cpus() -> None:
    seen = observe()
    assert len(seen.physical) in (0, len(seen.cores))
    assert seen.own_cores


def test_ranks_on_one_gpu_are_a_test_of_function() -> None:
    ranks = make_ranks(4, 64, 1)
    devices = ("GPU-a", "GPU-b", "GPU-a", "GPU-b")
    hosts = ("n1", "n1", "n1", "n2")
    placed = [replace(rank, device=device, host=host) for rank, device, host in zip(ranks, devices, hosts, strict=True)]
    (fault,) = shared_gpus(placed)
    assert fault.startswith("ranks 0 and 2 share GPU GPU-a on n1")
    assert shared_gpus(placed[1:]) == ()
    assert shared_gpus(ranks) == ()


V2 = "usage_usec 900\nnr_periods 50\nnr_throttled {periods}\nthrottled_usec {usec}\n"


def test_what_quotas_held_back_is_read_of_the_own_cgroup_and_those_around_it(tmp_path: Path) -> None:
    inner = tmp_path / "sys/fs/cgroup/job/step"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    (inner / "cpu.stat").write_text(V2.format(periods=3, usec=250_000))
    (inner.parent / "cpu.stat").write_text(V2.format(periods=9, usec=1_500_000))
    (inner.parent.parent / "cpu.stat").write_text("usage_usec 900\n")  # the root has no quota
    assert throttled_s(tmp_path) == pytest.approx((0.25, 1.5, 0.0))


def test_what_quotas_held_back_is_read_of_the_first_version_of_cgroups_too(tmp_path: Path) -> None:
    inner = tmp_path / "sys/fs/cgroup/cpu,cpuacct/job"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,cpuacct:/job\n3:memory:/job\n")
    (inner / "cpu.stat").write_text("nr_periods 50\nnr_throttled 3\nthrottled_time 2000000000\n")
    assert throttled_s(tmp_path) == pytest.approx((2.0, 0.0))


def test_the_cpus_held_back_are_those_of_the_cgroup_where_that_is_most() -> None:
    begin = CpuUsage(clock=0.0, host=0.0, process=0.0, throttled=(1.0, 5.0), wall=100.0)
    end = CpuUsage(clock=2.0, host=0.0, process=0.0, throttled=(7.0, 25.0), wall=110.0)
    assert Delays.between(begin, end, threads=1).throttled == pytest.approx(2.0)  # by all time, turns of others too
    assert Delays.between(begin, replace(begin, clock=2.0, wall=110.0), threads=1).throttled == 0.0


def test_a_host_whose_quota_held_its_ranks_back_is_named_with_share_and_quota() -> None:
    layout = Layout(nodes=2, ranks_per_node=2, threads=2)
    hosts = ("a", "a", "b", "b")
    places = [replace(place(core, host=host), quota=1.5) for core, host in enumerate(hosts)]
    held_back = (0.0, 0.0, 1.0, 1.2)
    ranks = [
        replace(rank, host=host, throttled_cpus=cpus)
        for rank, host, cpus in zip(make_ranks(4, 64, 1), hosts, held_back, strict=True)
    ]
    (fault,) = throttled_hosts(layout, places, ranks)
    for words in ("on b", "30%", "1.5 CPUs", f"{MOST_THROTTLED:.0%}"):
        assert words in fault
    just_allowed = [replace(rank, throttled_cpus=MOST_THROTTLED * 4) for rank in ranks]
    assert throttled_hosts(layout, places, just_allowed) == ()


class Nvml:
    """NVML of a host with one GPU, on which `pids` compute."""

    class NVMLError(Exception):
        pass

    def __init__(self, *pids: int) -> None:
        self._pids = pids

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-a":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 20) for pid in self._pids]


def test_processes_on_a_gpu_are_those_that_its_driver_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BLOCK, raising=False)
    assert computing_processes(Nvml(100, 4711), "GPU-a") == (100, 4711)
    assert computing_processes(Nvml(100, 4711), "GPU-b") == ()  # the driver does not say
    assert processes_beside(None) == ()


def test_launches_that_take_turns_on_a_gpu_are_not_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {100: {BLOCK: "block-1"}, 101: {BLOCK: "block-2"}, 102: {}, 103: {}}
    parents = {100: 1, 101: 1, 102: 1, 103: os.getppid()}  # 103 is forked by the server that has forked this one

    def process(pid: int) -> SimpleNamespace:
        return SimpleNamespace(environ=lambda: variables[pid], ppid=lambda: parents[pid])

    monkeypatch.setenv(BLOCK, "block-1")
    monkeypatch.setattr(gpus.psutil, "Process", process)
    assert computing_processes(Nvml(100, 101, 102, 103, os.getpid()), "GPU-a") == (101, 102, os.getpid())


def test_a_gpu_that_others_compute_on_is_named_with_its_rank() -> None:
    ranks = [
        replace(rank, device=f"GPU-{rank.rank}", gpu_processes=processes)
        for rank, processes in zip(make_ranks(2, 64, 1), ((100, 101), (101, 4711)), strict=True)
    ]
    (fault,) = occupied_gpus(ranks)
    for words in ("4711", "GPU-1", "rank 1", "node1"):
        assert words in fault
    elsewhere = [replace(rank, gpu_processes=(9, 10)) for rank in ranks]  # numbers of another PID namespace
    assert occupied_gpus(elsewhere) == ()
    assert occupied_gpus(make_ranks(2, 64, 1)) == ()
