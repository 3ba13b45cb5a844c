"""Contender that trains nothing: what recording takes that the harness does in every sum, and no more.

When each rank came to the sum and left it, and how long it updated weights meanwhile. `gradients` has this in its time.
"""

import sys

import msgspec

from harness.base.errors import RunError
from harness.bench.plan import WARM_UP_EPOCHS, ContenderOutput, Task
from harness.comm.autotune import build_native
from harness.comm.world import start
from harness.schema.claim import EXPERIMENTS


def main() -> None:
    """Record as many calls as an epoch has steps, on every rank; rank 0 prints the answer.

    Raises:
        RunError: there is no native operation here, which does the recording.
    """
    task = msgspec.json.decode(sys.argv[1], type=Task)
    world = start()
    library, failure = build_native()
    if library is None:
        raise RunError(failure)
    from mpi4py import MPI

    from harness.comm.native.operation import recording_seconds

    nbytes = EXPERIMENTS[task.name].weights_bytes
    steps = task.rows // (task.batch_per_rank * world.size)
    seconds = [
        recording_seconds(MPI.COMM_SELF, library, calls=steps, nbytes=nbytes)
        for _ in range(WARM_UP_EPOCHS + task.epochs)
    ]
    slowest = [max(epoch) for epoch in zip(*world.comm.allgather(seconds), strict=True)]
    if world.rank == 0:
        print(msgspec.json.encode(ContenderOutput(seconds=tuple(slowest))).decode(), flush=True)


if __name__ == "__main__":
    main()
