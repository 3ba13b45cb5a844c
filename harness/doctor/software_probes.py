"""Try something in a process of its own: ``python -m harness.doctor.software_probes mpi|tensorflow|operation|node``.

Each prints one line of JSON, ``node`` one for each check of this machine.
"""

import json
import os
import socket
import sys
import time
from dataclasses import asdict

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
    nodes = world.comm.gather(os.environ.get("SLURMD_NODENAME") or socket.gethostname()) or []  # None but on rank 0
    if world.rank == 0:
        library = MPI.Get_library_version().split("\0")[0].strip().splitlines()[0]
        answer = {
            "size": world.size,
            "sum": float(total[0]),
            "nodes": sorted(set(nodes)),
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


def probe_operation() -> None:
    """Load the C++ operation out of the cache, or compile it, and print where it is."""
    from harness.comm.native.build import build_operation

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(json.dumps({"library": str(build_operation())}), flush=True)


def probe_node() -> None:
    """Make the checks of a node of a cluster, and print each when it is made."""
    from harness.base.errors import UserError
    from harness.doctor.all_checks import check_operation, node_checks, try_find_mpi

    for check in node_checks():
        print(json.dumps(asdict(check)), flush=True)
    mpi = try_find_mpi()
    print(json.dumps(asdict(check_operation(None if isinstance(mpi, UserError) else mpi))), flush=True)


if __name__ == "__main__":
    probes = {"mpi": probe_mpi, "tensorflow": probe_tensorflow, "operation": probe_operation, "node": probe_node}
    probes[sys.argv[1]]()
