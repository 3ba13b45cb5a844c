"""Contender that trains nothing: the sums of gradients alone, by ``MPI_Allreduce`` in place.

Beside the bare step of two ranks (`harness.bench.bare`) it makes the bound for synchronous training: that step, and
then these sums.
"""

import sys
import time

import msgspec
import numpy as np

from harness.bench.plan import WARM_UP_EPOCHS, ContenderOutput, Task
from harness.comm.world import start
from harness.schema.claim import EXPERIMENTS


def main() -> None:
    """Sum as many bytes as the network has gradients, once for every step of an epoch; rank 0 prints the answer."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    world = start()
    from mpi4py import MPI

    values = np.zeros(EXPERIMENTS[task.name].weights_bytes // 4, np.float32)
    steps = task.rows // (task.batch_per_rank * world.size)
    seconds = []
    for _ in range(WARM_UP_EPOCHS + task.epochs):
        world.comm.Barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            world.comm.Allreduce(MPI.IN_PLACE, values)
        seconds.append(time.perf_counter() - begin)
    slowest = np.max(world.comm.allgather(seconds), axis=0)
    if world.rank == 0:
        answer = ContenderOutput(seconds=tuple(map(float, slowest)))
        print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main()
