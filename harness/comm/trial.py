"""Which native reduction is faster on these hosts: tried before training."""

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from harness.comm.direct import direct_sum
from harness.comm.placement import observe

if TYPE_CHECKING:
    from harness.comm.world import World

_CALLS = 15


def faster_way(world: "World", library: Path, largest: int) -> tuple[str, str]:
    """Return the faster way for calls of `largest` bytes, the same on every rank, and a note on a trial if any.

    On one host shared memory wins always, with one rank per host there is nothing but messages. Else both are tried
    in turns and the smaller median wins, the slowest rank's time counting.
    """
    hosts = world.comm.allgather(observe().host)
    if len(set(hosts)) == 1:
        return "native", ""
    if len(set(hosts)) == world.size:
        return "messages", ""
    ways = ("messages", "node-aware")
    values = np.zeros(max(1, largest // 4), np.float32)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with ExitStack() as stack:
        sums = {way: stack.enter_context(direct_sum(world.comm, library, largest=largest, way=way)) for way in ways}
        if sums["node-aware"][0] != "node-aware":
            return "messages", ""
        for _ in range(_CALLS):
            for way in ways:
                world.comm.Barrier()
                begin = time.perf_counter()
                sums[way][1](values.ctypes.data, values.size)
                seconds[way].append(time.perf_counter() - begin)
    found = {way: median(np.max(world.comm.allgather(seconds[way]), axis=0)[3:]) for way in ways}  # warm by then
    best = min(ways, key=lambda way: found[way])
    figures = ", ".join(f"{way} {1e3 * found[way]:.3f} ms" for way in ways)
    return best, f"a sum of {largest:,} bytes over these hosts takes {figures}: {best} is in use"
