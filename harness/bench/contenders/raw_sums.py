"""Contender that trains nothing: the allreduce of gradients alone, by ``MPI_Allreduce`` in place.

Beside the bare step of two ranks (`bare.py`) it makes the bound for synchronous training: that step, and then this
allreduce.
"""

import time

import numpy as np

from harness.bench.contenders.script import read_task, time_part
from harness.comm.world import start
from harness.schema.claim import EXPERIMENTS


def main() -> None:
    """Allreduce as many bytes as the network has gradients, once for every step of an epoch."""
    task, world = read_task(), start()
    from mpi4py import MPI

    values = np.zeros(EXPERIMENTS[task.name].weights_bytes // 4, np.float32)

    def epoch_seconds(steps: int) -> float:
        world.comm.Barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            world.comm.Allreduce(MPI.IN_PLACE, values)
        return time.perf_counter() - begin

    time_part(task, world, epoch_seconds)


if __name__ == "__main__":
    main()
