"""Rank program: ranks die one after another, in a sum, in its trial, and while a group opens.

Rank 0 prints what those that live met each time, and what is left of the group when they go on without the other. All
waits begin as if they had looked almost as often as an int can count.
"""

import faulthandler
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import tensorflow as tf
from mpi4py import MPI

from harness.base.errors import RunError
from harness.comm.lost_ranks import find_loss, forget_losses
from harness.comm.native_group import direct_sum
from harness.comm.native_reduction import NativeReduction
from harness.comm.world import start_mpi
from harness.schema.message_cost import Algorithm
from tests.mpi.limits import load_limited

ROOM = 2**20


def open_in_part(comm: MPI.Intracomm, exchanges: int) -> None:
    """Make the first so many exchanges by which a group opens (memory.cc)."""
    group = comm.Dup()
    host = group.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    one, ranks, name = np.ones(1, np.intc), np.empty(comm.size, np.intc), np.empty(64, "S1")
    made: list[Callable[[], None]] = [
        lambda: group.Allreduce(one, one.copy(), MPI.MAX),
        lambda: group.Allreduce(one, one.copy(), MPI.MIN),
        lambda: host.Bcast(name),
        lambda: host.Allreduce(one, one.copy(), MPI.MIN),
        lambda: group.Allreduce(one, one.copy(), MPI.MIN),
        lambda: host.Allgather(one, ranks),
    ]
    for exchange in made[:exchanges]:
        exchange()


def open_whole(comm: MPI.Intracomm) -> None:
    NativeReduction(comm, library, largest=ROOM)


def open_and_sum(comm: MPI.Intracomm) -> None:
    reduction = NativeReduction(comm, library, largest=ROOM)
    reduction.sum([tf.ones([1000])])
    if comm.rank < comm.size - 1:
        reduction.sum([tf.ones([1000])])
    time.sleep(1)  # while the others wait


def try_a_sum(comm: MPI.Intracomm) -> None:
    with direct_sum(comm, library, largest=ROOM, algorithm=Algorithm.NATIVE) as (_, total):
        values = np.ones(1000, np.float32)
        total(values.ctypes.data, [1000])
        if comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total(values.ctypes.data, [1000])


world = start_mpi()
library = load_limited()
faulthandler.dump_traceback_later(150, exit=True)  # a rank that waits for ever
forget_losses(0)
NativeReduction(MPI.COMM_SELF, library, largest=0).sum([tf.ones([1])])  # TensorFlow's own threads
comm, found = world.comm.Dup(), []
for name, survivors, victim in (
    ("sum", open_and_sum, open_and_sum),
    ("trial", try_a_sum, try_a_sum),
    ("named the memory", open_whole, lambda comm: open_in_part(comm, 3)),
    ("mapped it", open_whole, lambda comm: open_in_part(comm, 5)),
):
    threads = psutil.Process().num_threads()
    if comm.rank == comm.size - 1:
        victim(comm)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        survivors(comm)
        met = None
    except (RunError, tf.errors.OpError) as error:
        met = find_loss(error)
        comm.Revoke()
        library.functions.harness_give_up()
    comm = comm.Shrink()
    library.functions.harness_close_all()
    maps = Path("/proc/self/maps").read_text()
    found.append(
        {
            "name": name,
            "met": comm.gather(met and met.reason),
            "mapped": comm.gather(len(re.findall(r"/dev/shm/harness-\d", maps))),
            "threads": comm.gather(psutil.Process().num_threads() - threads),
            "files": len(list(Path("/dev/shm").glob(f"harness-{os.getpid()}-*"))),
        }
    )
if comm.rank == 0:
    print("RESULT " + json.dumps(found), flush=True)
comm.Barrier()
os._exit(0)
