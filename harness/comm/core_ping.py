"""How far the cores of a host's ranks are from each other: a ping-pong in shared memory."""

from typing import TYPE_CHECKING, cast

from harness.comm.native_group import NativeGroup
from harness.comm.native_library import NativeLibrary, find_library
from harness.comm.world import World, needs_sync
from harness.schema.message_cost import Algorithm

if TYPE_CHECKING:
    from mpi4py import MPI

_ROUNDS = (20, 1000)  # the first to warm up, and all there are where ranks have to take turns on a core
_SHARED_NS = 40_000  # more than this: the ranks share a core


def ping(comm: "MPI.Intracomm", library: NativeLibrary) -> float:
    """Return the ns of a ping-pong between two cores of the ranks of `comm`, all of one host.

    The median of a thousand rounds through all ranks; 0 where they find no memory to share.

    Raises:
        RunError: MPI fails, or a rank does not come.
    """
    group = NativeGroup(library)
    nanoseconds = 0.0
    try:
        if group.open(comm, largest=0, algorithm=Algorithm.NATIVE).algorithm is Algorithm.NATIVE:
            for rounds in _ROUNDS:
                nanoseconds = max(comm.allgather(group.ping(rounds)))
                if nanoseconds > _SHARED_NS:
                    break
    finally:
        group.close()
    return nanoseconds


def core_distance(world: World) -> float:
    """Return the ns until a core sees another one's answer to what it wrote, on the host where that takes longest.

    0 where no host has several ranks, or the native operation is not in use. On all ranks together.
    """
    if not needs_sync(world.size):
        return 0.0
    library = find_library(world.comm).library
    if library is None:
        return 0.0
    from mpi4py import MPI

    host = cast(MPI.Intracomm, world.comm.Split_type(MPI.COMM_TYPE_SHARED))
    try:
        nanoseconds = ping(host, library) if host.size > 1 else 0.0
    finally:
        host.Free()
    longest: float = max(world.comm.allgather(nanoseconds))
    return longest
