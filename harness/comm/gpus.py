"""The GPUs of a host: what they are, which of them TensorFlow uses, and which rank trains on which."""

import importlib.util
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from harness.base.errors import UserError
from harness.base.processes import run_program
from harness.base.setting_names import setting
from harness.base.turns import BLOCK
from harness.comm.world import World

_FIELDS = ("uuid", "name", "driver_version", "memory.total", "clocks.max.sm", "power.limit", "pci.bus_id")
_QUERY = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_LIMIT_S = 60  # the first call after a boot loads the driver
INSTALL_CUDA = ".venv/bin/python -m pip install -e '.[gpu]' in the checkout"
"""How TensorFlow gets its CUDA libraries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU as its driver describes it: memory in MiB, highest clock in MHz, power limit in watts, PCI address.

    `node` is the NUMA node that it is near to, None where the system does not say; `seen` are the UUIDs of all that its
    rank may use, in CUDA's order.
    """

    uuid: str
    name: str
    driver: str
    memory_mib: str
    clock_mhz: str
    power_w: str
    bus: str = ""
    node: int | None = None
    seen: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.memory_mib} MiB, driver {self.driver}, at most {self.clock_mhz} MHz, {self.power_w} W"
        )


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs in nvidia-smi's answer to the query, one a line, in the bus's order."""
    gpus = []
    for line in filter(str.strip, text.splitlines()):
        uuid, name, driver, memory, clock, power, bus = map(str.strip, line.split(","))
        gpu = Gpu(uuid=uuid, name=name, driver=driver, memory_mib=memory, clock_mhz=clock, power_w=power, bus=bus)
        gpus.append(gpu)
    return tuple(gpus)


def near_node(bus: str, folder: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return the NUMA node of the PCI device at `bus`, such as 00000000:17:00.0, None where the system does not say."""
    domain, _, place = bus.lower().partition(":")
    try:
        node = int((folder / f"{domain[-4:]}:{place}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def with_instances(gpus: Sequence[Gpu], listing: str) -> tuple[Gpu, ...]:
    """Return `gpus`, in place of one that is cut into MIG instances these, by what ``nvidia-smi -L`` lists."""
    parts: dict[str, list[Gpu]] = {gpu.uuid: [] for gpu in gpus}
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    divided = ""
    for name, uuid in re.findall(r"^ *(.*?) +(?:Device.*?)?\(UUID: (\S+)\)", listing, re.MULTILINE):
        size = re.search(r"(\d+)gb", name)  # of its profile, such as 1g.10gb
        if uuid in by_uuid:
            divided = uuid
        elif divided and size:
            gpu = by_uuid[divided]
            part = replace(gpu, uuid=uuid, name=f"{gpu.name} {name}", memory_mib=str(1024 * int(size[1])))
            parts[divided].append(part)
    return tuple(one for gpu in gpus for one in parts[gpu.uuid] or [gpu])


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use: those of the host that CUDA_VISIBLE_DEVICES names, in its order.

    Raises:
        UserError: there is no driver, or CUDA_VISIBLE_DEVICES names a GPU that is not there.
    """
    answer = run_program(_QUERY, limit_s=_LIMIT_S)
    if answer.code != 0:
        raise UserError(
            f"GPUs are asked for, but the driver does not answer ({answer.last_error}): use a host with GPUs, or none"
        )
    whole = [replace(gpu, node=near_node(gpu.bus)) for gpu in parse_gpus(answer.out)]
    gpus = with_instances(whole, run_program((_QUERY[0], "-L"), limit_s=_LIMIT_S).out)
    return select_visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def select_visible(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Return those of `gpus` that CUDA_VISIBLE_DEVICES, with the value `visible`, names; all where it is not set.

    Raises:
        UserError: it names one that is not there.
    """
    if visible is None:
        return tuple(gpus)
    chosen = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        if word == "-1":
            break  # CUDA's rule: what follows an invalid number is not seen
        named = [gpu for number, gpu in enumerate(gpus) if word == str(number) or gpu.uuid.startswith(word)]
        if len(named) != 1:
            raise UserError(f"CUDA_VISIBLE_DEVICES={visible} names '{word}', of {len(gpus)} GPUs here: correct it")
        chosen.append(named[0])
    return tuple(chosen)


def hide_others(gpu: Gpu | None) -> None:
    """Let the CUDA library of this process find `gpu` alone, or none; it asks when the first GPU is looked for."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid if gpu else "-1"


def start_gpu(gpu: Gpu | None, *, alone: bool = False) -> None:
    """Have TensorFlow use `gpu` alone and take its memory as it needs it, not all at once; None for no GPU at all.

    Call before its first operation: from then on CUDA_VISIBLE_DEVICES, which a script may set, is not asked any more.
    CUDA sees all GPUs that the rank may use, as NCCL and MPI need to reach another rank's directly, unless TensorFlow
    is to find the rank's `alone`, as a script does, or it is a MIG instance, of which CUDA shows a process only one.

    Raises:
        UserError: TensorFlow does not see the GPU (its CPU-only build, or no CUDA libraries).
    """
    import keras  # noqa: F401 - loaded by need, and a part of what it takes to import TensorFlow
    import tensorflow as tf

    hide_others(gpu)
    seen = cuda_devices(gpu, alone=alone) if gpu else ()
    if seen:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
    devices = tf.config.list_physical_devices("GPU")
    if gpu and len(devices) != len(seen):
        raise UserError(
            f"TensorFlow {tf.__version__} does not see the GPU '{gpu.name}' ({len(devices)} of {len(seen)} GPUs): "
            f"install its CUDA libraries with {INSTALL_CUDA}, or use no GPUs"
        )
    if gpu and not alone:
        devices = [devices[seen.index(gpu.uuid)]]
        tf.config.set_visible_devices(devices, "GPU")
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)


def cuda_devices(gpu: Gpu, *, alone: bool) -> tuple[str, ...]:
    """Return the UUIDs of what CUDA is to see, in its order, as `start_gpu` says."""
    divided = any(uuid.startswith("MIG-") for uuid in (gpu.uuid, *gpu.seen))
    return (gpu.uuid,) if alone or divided or gpu.uuid not in gpu.seen else gpu.seen


def gpu_peak_bytes() -> int:
    """Return the most bytes that TensorFlow has had in use on the rank's GPU, 0 without one."""
    import tensorflow as tf

    if not tf.config.list_logical_devices("GPU"):
        return 0
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


# Which GPU of its node each rank trains on: by its local rank, near its cores.

_NODES = Path("/sys/devices/system/node")


def assign(
    pools: Sequence[tuple[Gpu, ...]], local_rank: int, *, host: str, shared: bool, nodes: Sequence[int | None] = ()
) -> Gpu:
    """Return the GPU of rank `local_rank` of a host; `pools` are what each of the host's ranks may use.

    Where a scheduler gave every rank GPUs of its own, it is the first of them; where all see the same, it goes
    by the local rank, as `choose_near` does. `nodes` are the NUMA nodes of the ranks' cores, None where not known.
    `shared` permits several ranks on one GPU.

    Raises:
        UserError: there are fewer GPUs than ranks and they may not be shared, or none.
    """
    pool = pools[local_rank]
    together = {gpu.uuid for rank_pool in pools for gpu in rank_pool}
    if not pool:
        raise UserError(f"GPUs are asked for, but local rank {local_rank} on {host} sees none: ask for GPUs in the job")
    if len(together) == sum(map(len, pools)):
        return pool[0]
    if len(together) < len(pools) and not shared:
        raise UserError(
            f"{len(pools)} ranks on {host} for {len(together)} GPUs: use at most {len(together)} ranks per node, "
            f"or {setting('oversubscribe', True)} in a sweep to share GPUs for function, never for timing"
        )
    if len(pool) < len(pools):
        return pool[local_rank % len(pool)]
    return choose_near(pool, nodes or [None] * len(pools))[local_rank]


def choose_near(gpus: Sequence[Gpu], nodes: Sequence[int | None]) -> list[Gpu]:
    """Return the GPU of every local rank: one on the NUMA node of its cores, or the first of `gpus` that is left.

    `nodes` has the NUMA node of each rank's cores, None where it is not known; there are at least as many GPUs.
    """
    free = list(gpus)
    chosen: dict[int, Gpu] = {}
    for rank, node in enumerate(nodes):
        near = next((gpu for gpu in free if node is not None and gpu.node == node), None)
        if near is not None:
            chosen[rank] = near
            free.remove(near)
    for rank in range(len(nodes)):
        if rank not in chosen:
            chosen[rank] = free.pop(0)
    return [chosen[rank] for rank in range(len(nodes))]


def node_of_cores(cores: frozenset[int], folder: Path = _NODES) -> int | None:
    """Return the NUMA node that has all `cores`, None where there is no such node or the system does not say."""
    for path in folder.glob("node*/cpulist"):
        if cores <= _listed(path.read_text()):
            return int(path.parent.name.removeprefix("node"))
    return None


def _listed(text: str) -> frozenset[int]:
    """Return the numbers of a kernel's list such as ``0-3,8``."""
    cores = set[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def own_gpu(world: World, gpus_per_rank: int, *, shared: bool) -> Gpu | None:
    """Return this rank's GPU, None where ranks have none, and hide all others. Call before TensorFlow is imported.

    Raises:
        SharedError: a UserError of `visible_gpus` or `assign`, on every rank.
    """
    gpu = None
    if gpus_per_rank:
        from mpi4py import MPI

        local = world.comm.Split_type(MPI.COMM_TYPE_SHARED)
        pools = local.allgather(world.on_all(visible_gpus))
        nodes = local.allgather(node_of_cores(frozenset(os.sched_getaffinity(0))))
        number = local.Get_rank()
        local.Free()
        gpu = world.on_all(lambda: assign(pools, number, host=platform.node(), shared=shared, nodes=nodes))
        gpu = replace(gpu, seen=tuple(other.uuid for other in pools[number]))
    hide_others(gpu)
    return gpu


# Which processes compute on a rank's GPU, by its driver.


def processes_beside(gpu: Gpu | None) -> tuple[int, ...]:
    """Return the processes that compute on `gpu` now, without those of other launches of this process's turn block.

    Empty without a GPU, without nvidia-ml-py, and where the driver does not say.
    """
    if gpu is None or not importlib.util.find_spec("pynvml"):
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return computing_processes(pynvml, gpu.uuid)
    finally:
        pynvml.nvmlShutdown()


def computing_processes(nvml: Any, uuid: str) -> tuple[int, ...]:
    """Return what `processes_beside` does of the GPU with `uuid`, by NVML, the module `pynvml`."""
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return ()
    return tuple(process.pid for process in running if not _takes_turns(process.pid))


def _takes_turns(pid: int) -> bool:
    """Return whether a process other than this one is of its turn block: it waits while this one trains.

    What one server has forked does not show its environment: it has the same parent.
    """
    block = os.environ.get(BLOCK)
    if not block or pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        return process.ppid() == os.getppid() or bool(process.environ().get(BLOCK) == block)
    except psutil.Error:  # it has ended, or is another user's
        return False
