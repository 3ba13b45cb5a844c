"""Build the operation once for every combination of TensorFlow, MPI library and compiler."""

import functools
import hashlib
import os
import shutil
from pathlib import Path

from harness.base.errors import RunError
from harness.base.files import cache_folder, hold_lock_file
from harness.base.processes import quiet_stderr, run_program
from harness.comm.mpi_library import find_launcher

_NAMES = (
    "allreduce",
    "arithmetic",
    "batch",
    "group",
    "guard",
    "interface",
    "memory",
    "messages",
    "refuse",
    "turn",
    "update",
    "wait",
)
_SOURCES = tuple(f"{name}.cc" for name in _NAMES)
_HEADERS = ("arithmetic.h", "group.h", "wire.h")
_LIMIT_S = 600.0  # of the compiler; a minute on a slow machine
# -w: TensorFlow's headers warn about themselves. No fused multiply-add: updates round as TensorFlow's kernels do.
_FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-w", "-shared", "-fPIC", "-pthread")


@functools.cache  # TensorFlow knows only the operations of the first: what is edited in between is for other processes
def build_operation() -> Path:
    """Return the operation's library, compiling it when this combination has none yet (about 10 s).

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
            *_FLAGS,
            *((folder / name).read_text() for name in (*_SOURCES, *_HEADERS)),
        ]
    )
    library = cache_folder() / "native" / hashlib.sha256(identity.encode()).hexdigest()[:16] / "libharness_comm.so"
    if library.exists():
        return library
    with hold_lock_file(library.with_name("lock")):  # ranks start together: one compiles, the others wait
        if not library.exists():
            _compile(compiler, flags, folder, library)
    return library


def _compile(compiler: str, flags: list[str], folder: Path, library: Path) -> None:
    for left in library.parent.glob(f"{library.stem}.*"):  # by a build that was killed: the lock is ours now
        left.unlink()
    partial = library.with_suffix(f".{os.getpid()}")
    sources = [str(folder / name) for name in _SOURCES]
    finished = run_program([compiler, *_FLAGS, *sources, "-o", str(partial), *flags], limit_s=_LIMIT_S)
    if finished.code != 0:
        errors = [line for line in finished.err.splitlines() if "error" in line]
        raise RunError(f"the native operation does not compile: {errors[0] if errors else finished.err[-300:]}")
    partial.replace(library)


def main() -> None:
    """Build at set-up, so that the first launch need not; without a compiler say what will be used instead."""
    try:
        with quiet_stderr():
            build_operation()
    except RunError as error:
        print(f"{error}; until then the slower numpy_function bridge is used")


if __name__ == "__main__":
    main()
