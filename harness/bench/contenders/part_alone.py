"""Contenders that train nothing: ``... .part_alone TASK PART`` times one part of an epoch's steps by itself.

``raw-sums`` is the allreduce of gradients by ``MPI_Allreduce`` in place: after the bare step of two ranks (`bare.py`)
it makes the bound for synchronous training. ``recording`` is what the harness records in every allreduce: when each
rank came to it and left it, and how long it updated weights meanwhile. `gradients` has this in its time.
"""

import sys
import time

import numpy as np

from harness.base.errors import RunError
from harness.bench.bench_record import WARM_UP_EPOCHS, ContenderOutput
from harness.bench.contenders.script import print_output, read_task
from harness.comm.autotune import build_native
from harness.comm.world import start
from harness.schema.claim import EXPERIMENTS


def main() -> None:
    """Do the part once for every step of an epoch, on every rank; rank 0 prints the slowest rank's seconds.

    Raises:
        RunError: there is no native operation here, which does the recording.
    """
    task, part, world = read_task(), sys.argv[2], start()
    library, failure = build_native() if part == "recording" else (None, "")
    if failure:
        raise RunError(failure)
    from mpi4py import MPI

    nbytes = EXPERIMENTS[task.name].weights_bytes
    values = np.zeros(nbytes // 4, np.float32)
    steps, seconds = task.rows // (task.batch_per_rank * world.size), []
    for _ in range(WARM_UP_EPOCHS + task.epochs):
        if library is not None:
            from harness.comm.native.operation import recording_seconds

            seconds.append(recording_seconds(MPI.COMM_SELF, library, calls=steps, nbytes=nbytes))
            continue
        world.comm.Barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            world.comm.Allreduce(MPI.IN_PLACE, values)
        seconds.append(time.perf_counter() - begin)
    slowest = np.max(world.comm.allgather(seconds), axis=0)
    if world.rank == 0:
        print_output(ContenderOutput(seconds=tuple(map(float, slowest))))


if __name__ == "__main__":
    main()
