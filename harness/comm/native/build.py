"""Build the operation once for every combination of TensorFlow and MPI library."""

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import RunError, UserError
from harness.base.files import cache_folder, hold_lock_file
from harness.base.processes import quiet_stderr, run_program
from harness.base.removal import remove_file, replace_file
from harness.comm.mpi_library import compiler_variables, compiler_wrapper, find_mpi, mpi4py_variables


@dataclass(frozen=True, kw_only=True, slots=True)
class NativePart:
    """Sources beside this module that become one library of TensorFlow operations, by their names."""

    library: str
    sources: tuple[str, ...]
    headers: tuple[str, ...]


SUMS_ON_CPU = NativePart(
    library="libharness_comm",
    sources=(
        "allreduce.cc",
        "arithmetic.cc",
        "row_gather.cc",
        "fuse.cc",
        "group.cc",
        "exchange_check.cc",
        "interface.cc",
        "memory.cc",
        "messages.cc",
        "raise_error.cc",
        "turn.cc",
        "update.cc",
        "wait.cc",
    ),
    headers=("arithmetic.h", "group.h", "sum_op.h", "wire.h"),
)
SUMS_BY_NCCL = NativePart(
    library="libharness_nccl",
    sources=("nccl_api.cc", "nccl_group.cc", "nccl_sums.cc"),
    headers=("nccl_api.h", "nccl_group.h", "sum_op.h"),
)
"""Apart from the other one: it is compiled where ranks have GPUs, and takes headers that a TensorFlow may not have."""
_LIMIT_S = 600.0  # of the compiler; a minute on a slow machine
# -w: TensorFlow's headers warn about themselves. No fused multiply-add: updates round as TensorFlow's kernels do.
# -DNDEBUG as TensorFlow itself: its classes of a graph are laid out otherwise without.
COMPILER_FLAGS = ("-DNDEBUG", "-O3", "-ffp-contract=off", "-fno-math-errno", "-w", "-shared", "-fPIC", "-pthread")


@functools.cache  # TensorFlow knows only the operations of the first: what is edited in between is for other processes
def build_operation(part: NativePart = SUMS_ON_CPU) -> Path:
    """Return the library of `part`, compiling it when this combination has none yet (about 10 s).

    A compiler is needed only for that: nodes without one use what a login node has built into a cache that they see.

    Raises:
        RunError: there is no compiler or it fails; the message has its first error.
    """
    import mpi4py
    import tensorflow as tf

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    folder = Path(__file__).parent
    identity = "\0".join(
        [
            MPI.Get_library_version(),
            *flags,
            *COMPILER_FLAGS,
            *((folder / name).read_text() for name in (*part.sources, *part.headers)),
        ]
    )
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    library = cache_folder() / "native" / digest / f"{part.library}.so"
    if library.exists():
        return library
    with hold_lock_file(library.with_name("lock")):  # ranks start together: one compiles, the others wait
        if not library.exists():
            _compile(flags, [str(folder / name) for name in part.sources], library)
    return library


def _compile(flags: list[str], sources: list[str], library: Path) -> None:
    mpi = find_mpi()
    compiler = compiler_wrapper(mpi, "mpicxx")
    if compiler is None:
        raise RunError("no MPI compiler mpicxx beside mpirun: install the MPI library's development files")
    variables = compiler_variables(mpi)
    version = run_program([compiler, "--version"], changes=variables)
    if version.code != 0:
        raise RunError(f"the compiler behind {compiler} does not start: install g++ ({version.err.strip()[:200]})")
    for left in library.parent.glob(f"{library.stem}.*"):  # by a build that was killed: the lock is ours now
        remove_file(left)
    partial = library.with_suffix(f".{os.getpid()}")
    words = [compiler, *COMPILER_FLAGS, *sources, "-o", str(partial), *flags]
    finished = run_program(words, limit_s=_LIMIT_S, changes=variables)
    if finished.code != 0:
        errors = [line for line in finished.err.splitlines() if "error" in line]
        raise RunError(f"the native operation does not compile: {errors[0] if errors else finished.err[-300:]}")
    replace_file(partial, library, "cache folder")


def main() -> None:
    """Build at set-up, so that the first launch need not; without a compiler say what will be used instead.

    It is built for the library that ranks load, with HARNESS_MPI=system the site's.
    """
    try:
        for name, value in mpi4py_variables(find_mpi()).items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        with quiet_stderr():
            build_operation()
    except (RunError, UserError) as error:
        print(f"{error}; until then the slower numpy_function bridge is used")


if __name__ == "__main__":
    main()
