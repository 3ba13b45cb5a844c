"""Contender that trains nothing: what recording takes that the harness does in every allreduce, and no more.

When each rank came to the allreduce and left it, and how long it updated weights meanwhile. `gradients` has this in its
time.
"""

from harness.base.errors import RunError
from harness.bench.contenders.script import read_task, time_part
from harness.comm.autotune import build_native
from harness.comm.world import start
from harness.schema.claim import EXPERIMENTS


def main() -> None:
    """Record as many calls as an epoch has steps, on every rank.

    Raises:
        RunError: there is no native operation here, which does the recording.
    """
    task, world = read_task(), start()
    library, failure = build_native()
    if library is None:
        raise RunError(failure)
    from mpi4py import MPI

    from harness.comm.native.operation import recording_seconds

    nbytes = EXPERIMENTS[task.name].weights_bytes
    time_part(task, world, lambda steps: recording_seconds(MPI.COMM_SELF, library, calls=steps, nbytes=nbytes))


if __name__ == "__main__":
    main()
