"""The MPI world of this process."""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from harness.errors import RunError, SharedError, UserError

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """A communicator and this process's place in it."""

    comm: "MPI.Intracomm"
    rank: int
    size: int

    def on_root(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 and return its result on every rank.

        Raises:
            SharedError: on every rank, when `action` raised a UserError or RunError on rank 0.
        """
        outcome: tuple[bool, Any] | None = None
        if self.rank == 0:
            try:
                outcome = (True, action())
            except (UserError, RunError) as error:
                outcome = (False, error)
        succeeded, value = self.comm.bcast(outcome, root=0)
        if not succeeded:
            raise SharedError(value)
        return value  # type: ignore[no-any-return]


@functools.cache
def start() -> World:
    """Initialise MPI and return the world of all ranks.

    Calls are serialised, not concurrent: TensorFlow makes them from its own threads, one at a time.
    """
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    return World(comm=comm, rank=comm.Get_rank(), size=comm.Get_size())


def abort(world: World, error: BaseException) -> NoReturn:
    """End all ranks because of `error` on this one: its message first, then MPI_Abort with exit code 1 or 2."""
    mendable = isinstance(error, UserError)
    if not isinstance(error, (UserError, RunError)):
        traceback.print_exception(error)
    print(f"harness: rank {world.rank}: {_sentence(error)}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    world.comm.Abort(2 if mendable else 1)
    os._exit(2 if mendable else 1)  # MPI_Abort does not return; this says so to the type checker


def _sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, (UserError, RunError)) else f"{type(error).__name__}: {error}"
