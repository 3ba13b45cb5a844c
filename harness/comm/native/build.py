"""Build the operation once for every combination of TensorFlow, MPI library and compiler."""

import functools
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import RunError
from harness.base.files import cache_folder, hold_lock_file
from harness.base.processes import quiet_stderr, run_program
from harness.base.removal import remove_file, replace_file
from harness.comm.mpi_library import find_launcher


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

    Raises:
        RunError: there is no compiler or it fails; the message has its first error.
    """
    import mpi4py
    import tensorflow as tf

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    beside = find_launcher().with_name("mpicxx")
    compiler = str(beside) if beside.exists() else shutil.which("mpicxx")
    if compiler is None:
        raise RunError("no MPI compiler mpicxx beside mpirun: install the MPI library's development files")
    version = run_program([compiler, "--version"])
    if version.code != 0:
        raise RunError(f"the compiler behind {compiler} does not start: install g++ ({version.err.strip()[:200]})")
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    folder = Path(__file__).parent
    identity = "\0".join(
        [
            MPI.Get_library_version(),
            version.out,
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
            _compile(compiler, flags, [str(folder / name) for name in part.sources], library)
    return library


def _compile(compiler: str, flags: list[str], sources: list[str], library: Path) -> None:
    for left in library.parent.glob(f"{library.stem}.*"):  # by a build that was killed: the lock is ours now
        remove_file(left)
    partial = library.with_suffix(f".{os.getpid()}")
    finished = run_program([compiler, *COMPILER_FLAGS, *sources, "-o", str(partial), *flags], limit_s=_LIMIT_S)
    if finished.code != 0:
        errors = [line for line in finished.err.splitlines() if "error" in line]
        raise RunError(f"the native operation does not compile: {errors[0] if errors else finished.err[-300:]}")
    replace_file(partial, library, "cache folder")


def main() -> None:
    """Build at set-up, so that the first launch need not; without a compiler say what will be used instead."""
    try:
        with quiet_stderr():
            build_operation()
    except RunError as error:
        print(f"{error}; until then the slower numpy_function bridge is used")


if __name__ == "__main__":
    main()
