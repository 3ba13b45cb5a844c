"""The MPI world of this process, and whether its ranks found each other."""

import contextlib
import ctypes
import faulthandler
import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from harness.base.errors import RunError, SeparateWorldsError, SharedError, UserError
from harness.base.exit_codes import BAD_INPUT, FAILED, SEPARATE_WORLDS
from harness.comm.harness_variables import exit_code_file, sums_on_one_rank
from harness.comm.lost_ranks import LostRankError, find_loss

if TYPE_CHECKING:
    from mpi4py import MPI


T = TypeVar("T")
_FORWARDED_S = 0.2  # what a rank has printed: an abort may overtake it in the launcher
_FIRST_SPEAKS_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """A communicator and this process's place in it."""

    comm: "MPI.Intracomm"
    rank: int
    size: int

    def on_root(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 and return its result on every rank.

        Raises:
            SharedError: on every rank, when `action` failed on rank 0.
        """
        outcome: tuple[bool, Any] | None = None
        if self.rank == 0:
            try:
                outcome = (True, action())
            except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait
                outcome = (False, _shown(error))
        succeeded, value = self.comm.bcast(outcome, root=0)
        if not succeeded:
            raise SharedError(value)
        return value  # type: ignore[no-any-return]

    def on_all(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank and return each its own result.

        Raises:
            SharedError: on every rank, when `action` failed on some: the first rank's.
        """
        failure: UserError | RunError | None = None
        try:
            result = action()
        except Exception as error:  # noqa: BLE001 - the same
            failure = _shown(error)
        for rank_failure in self.comm.allgather(failure):
            if rank_failure is not None:
                raise SharedError(rank_failure)
        return result


def bind_library() -> None:
    """Load the MPI library that MPI4PY_LIBMPI names with all its symbols bound, before TensorFlow is loaded.

    TensorFlow exports the hwloc that is inside of it. mpi4py binds lazily, so that what a site's MPI library calls of
    hwloc in MPI_Finalize for the first time would be TensorFlow's, of another version: Debian's MPICH crashes there.
    """
    library = os.environ.get("MPI4PY_LIBMPI")
    if library:
        with contextlib.suppress(OSError):  # mpi4py says why it does not load
            ctypes.CDLL(library, os.RTLD_NOW | os.RTLD_LOCAL)


@functools.cache
def start_mpi() -> World:
    """Initialise MPI and return the world of all ranks.

    Calls are serialised, not concurrent: TensorFlow makes them from its own threads, one at a time.

    Raises:
        UserError: the MPI library can only be called from one thread.
    """
    import mpi4py

    if os.environ.get(FAULT_TOLERANCE):
        os.environ.update(_TOLERANT)
    mpi4py.rc.thread_level = "serialized"
    bind_library()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED and comm.Get_size() > 1:
        library = MPI.Get_library_version().splitlines()[0]
        raise UserError(
            f"{library} can only be called from one thread, but TensorFlow calls MPI from its own: use an MPI library "
            "with at least MPI_THREAD_SERIALIZED"
        )
    return World(comm=comm, rank=comm.Get_rank(), size=comm.Get_size())


FAULT_TOLERANCE = "OMPI_MCA_mpi_ft_enable"  # as mpirun --with-ft sets it
# coll han and adapt lose ranks over hosts; ob1 is the only messaging that knows of failures (Open MPI's ULFM guide).
_TOLERANT = {"OMPI_MCA_coll": "^han,adapt", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}


@contextlib.contextmanager
def impatiently(seconds: float) -> Iterator[None]:
    """End this process, with its stack, if the block takes so long where ranks may fail; never for 0 seconds.

    For the start: where a rank fails before MPI knows it, the others wait for it inside of MPI, which a mpirun that
    survives failures does not end. No thread of Python's runs there.
    """
    if seconds and os.environ.get(FAULT_TOLERANCE):
        faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def needs_sync(ranks: int) -> bool:
    """Tell whether `ranks` ranks sum: several do, and one where HARNESS_SYNC_ALONE=1 asks what that costs."""
    return ranks > 1 or sums_on_one_rank()


def abort(world: World, error: BaseException) -> NoReturn:
    """End all ranks because of `error` on this one: its message first, then MPI_Abort with exit code 1 or 2."""
    code = BAD_INPUT if isinstance(error, UserError) else FAILED
    print(f"harness: rank {world.rank}: {_shown(error)}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    time.sleep(_FORWARDED_S)
    world.comm.Abort(code)
    os._exit(code)  # MPI_Abort does not return; this says so to the type checker


def leave(world: World, code: int) -> int:
    """Return what this process is to end with where every rank knows that all end with `code`.

    That is 0 where `harness run` reads the code from a file: of any other a launcher has a dozen lines of its own to
    say, after the sentence that says why.
    """
    file = exit_code_file()
    if file is None:
        return code
    if world.rank == 0:
        file.write_text(str(code))
    return 0


def abort_together(world: World, shared: SharedError) -> NoReturn:
    """End all processes because of an error that all ranks have raised; rank 0 speaks, the others wait for it."""
    if world.rank:
        time.sleep(_FIRST_SPEAKS_S)
    abort(world, shared.error)


def _shown(error: BaseException) -> UserError | RunError:
    """Return an error as it is told to all ranks; where nobody has foreseen it, its traceback is printed here."""
    if isinstance(error, (UserError, RunError)):
        return error
    traceback.print_exception(error)
    sentence = f"{type(error).__name__}: {error}"
    loss = find_loss(error)
    return RunError(sentence) if loss is None else LostRankError(sentence, loss)


_NUMBERS = ("SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


def check_start(size: int) -> None:
    """End every process of a wrong start; the first of them says what is wrong.

    The others wait for it: a launcher that ends all at the first exit would cut its sentence off.

    Raises:
        SeparateWorldsError: in the first process, see `wrong_start`.
    """
    if size != 1:
        return
    from mpi4py import MPI

    problem = wrong_start(os.environ, MPI.Get_library_version())
    if problem is None:
        return
    if any(_count(os.environ, name) > 0 for name in _NUMBERS):
        time.sleep(_FIRST_SPEAKS_S)
        sys.exit(SEPARATE_WORLDS)
    raise SeparateWorldsError(problem)


def check_world_size(world: World, ranks: int) -> None:
    """Refuse a world of another size than `ranks`, those of the layout.

    Raises:
        SharedError: on every rank.
    """
    if world.size == ranks:
        return
    started = f"{world.size} MPI ranks were started for a layout of {ranks}"
    sentence = f"{started}: start it with mpirun -n {ranks} or srun --ntasks={ranks}"
    raise SharedError(SeparateWorldsError(sentence) if world.size == 1 else UserError(sentence))


def wrong_start(environ: Mapping[str, str], library: str) -> str | None:
    """Return why a world of one rank is not what the launcher meant to start, with the fix, or None.

    `library` is the MPI library's own name. Launchers tell their processes how many there are: srun by
    SLURM_STEP_NUM_TASKS, Open MPI's mpirun by OMPI_COMM_WORLD_SIZE, Hydra's (MPICH, Intel MPI) by PMI_SIZE.
    """
    if _count(environ, "OMPI_COMM_WORLD_SIZE") > 1:
        return _other(environ["OMPI_COMM_WORLD_SIZE"], "mpirun of Open MPI", library)
    if _count(environ, "OMPI_COMM_WORLD_SIZE") == 1:
        return None  # mpirun itself started its daemon by srun: the step's tasks are not the ranks
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if _count(environ, "PMI_SIZE") > 1 and not tasks:
        return _other(environ["PMI_SIZE"], "mpiexec of MPICH", library)
    if _count(environ, "SLURM_STEP_NUM_TASKS") > 1:
        kind = "pmix" if library.lower().startswith("open mpi") else "pmi2"
        return _other(tasks, "srun", library, f"srun --mpi={kind}, or mpirun inside the job")
    return None


def _other(count: str, launcher: str, library: str, fix: str = "the mpirun of that library") -> str:
    name = library.split(",")[0].strip()
    return f"{launcher} started {count} processes, but each of them is alone in its MPI world ({name}): use {fix}"


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
