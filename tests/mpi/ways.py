"""Rank program: seconds of a sum of float32 over several hosts by every way, in turns; rank 0 prints the medians.

Usage: ways.py BYTES CALLS. ``one leader`` is what the other ways are held against: a rank of each host adds up what its
host has, sums over the hosts and hands the sums round, by MPI alone.
"""

import json
import sys
import time
from contextlib import ExitStack

import numpy as np
from mpi4py import MPI

from harness.comm.native_group import direct_sum
from harness.comm.native_library import find_library
from harness.comm.world import start_mpi
from harness.schema.message_cost import Algorithm

NBYTES, CALLS = int(sys.argv[1]), int(sys.argv[2])

world = start_mpi()
host = world.comm.Split_type(MPI.COMM_TYPE_SHARED)
leaders = world.comm.Split(0 if host.rank == 0 else MPI.UNDEFINED)
values = np.ones(NBYTES // 4, np.float32)


def one_leader() -> None:
    """Sum `values` in place."""
    if host.rank == 0:
        host.Reduce(MPI.IN_PLACE, values)
        leaders.Allreduce(MPI.IN_PLACE, values)
    else:
        host.Reduce(values, None)
    host.Bcast(values)


def one_message() -> None:
    """Send `values` from one host to another, where they are confirmed."""
    if host.rank == 0 and leaders.rank == 0:
        leaders.Send(values, 1)
        leaders.recv(source=1)
    elif host.rank == 0 and leaders.rank == 1:
        leaders.Recv(received, 0)
        leaders.send(None, 0)


received = np.empty_like(values)
with ExitStack() as stack:
    sums = {"one leader": one_leader, "MPI_Allreduce": lambda: world.comm.Allreduce(MPI.IN_PLACE, values)}
    sums["one message"] = one_message
    for way in (Algorithm.MESSAGES, Algorithm.NODE_AWARE):
        opened = direct_sum(world.comm, find_library().library, largest=values.nbytes, algorithm=way)
        taken, total = stack.enter_context(opened)
        if taken == way:
            sums[way] = lambda total=total: total(values.ctypes.data, [len(values)])
    seconds: dict[str, list[float]] = {way: [] for way in sums}
    for _ in range(CALLS):
        for way, add in sums.items():
            values[:] = world.rank
            world.comm.Barrier()
            begin = time.perf_counter()
            add()
            seconds[way].append(time.perf_counter() - begin)
            assert (values == world.size * (world.size - 1) / 2).all() or way == "one message", way
slowest = {way: np.max(world.comm.allgather(found), axis=0)[2:] for way, found in seconds.items()}  # warm by then
if world.rank == 0:
    print("RESULT " + json.dumps({way: float(np.median(found)) for way, found in slowest.items()}))
