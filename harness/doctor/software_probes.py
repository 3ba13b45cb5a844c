"""Try MPI or TensorFlow in a process of its own: ``python -m harness.doctor.software_probes mpi|tensorflow``.

Each prints one line of JSON.
"""

import json
import os
import sys
import time

import numpy as np


def probe_mpi() -> None:
    """Join the world as a launch does, allreduce the rank numbers; rank 0 prints which MPI this is and their sum."""
    from harness.comm.world import start_mpi

    world = start_mpi()
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


def probe_tensorflow() -> None:
    """Import TensorFlow and Keras, compute once; print how long the import took and which GPUs there are."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    begin = time.perf_counter()
    import keras  # noqa: F401 - TensorFlow imports it lazily, every run at once
    import tensorflow as tf

    seconds = time.perf_counter() - begin
    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    total = float(tf.reduce_sum(tf.ones([2, 2]) @ tf.ones([2, 2])))
    print(json.dumps({"seconds": seconds, "gpus": gpus, "sum": total}), flush=True)


if __name__ == "__main__":
    {"mpi": probe_mpi, "tensorflow": probe_tensorflow}[sys.argv[1]]()
