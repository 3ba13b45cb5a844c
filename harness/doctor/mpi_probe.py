"""Run by the doctor, alone and as two ranks: which MPI this is, and whether the ranks form one world.

Rank 0 prints one JSON line.
"""

import json

import numpy as np


def main() -> None:
    """Join the world as a run does, add up the rank numbers and let rank 0 tell."""
    from harness.comm.world import start

    world = start()
    from mpi4py import MPI

    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    total = np.zeros(1)
    world.comm.Allreduce(np.array([float(world.rank)]), total)
    if world.rank == 0:
        library = MPI.Get_library_version().split("\0")[0].strip().splitlines()[0]
        answer = {
            "size": world.size,
            "sum": float(total[0]),
            "library": library,
            "standard": ".".join(map(str, MPI.Get_version())),
            "threads": levels[MPI.Query_thread()],
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
