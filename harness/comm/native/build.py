"""Build the operation once for every combination of TensorFlow, MPI library and compiler."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from harness.base.errors import RunError
from harness.comm.launcher import find_launcher

_SOURCES = ("allreduce.cc", "arithmetic.cc", "group.cc", "guard.cc", "interface.cc", "memory.cc", "sgd.cc")
_HEADERS = ("arithmetic.h", "group.h", "wire.h")
# -w: TensorFlow's headers warn about themselves. No fused multiply-add: updates round as TensorFlow's kernels do.
_FLAGS = ("-O3", "-ffp-contract=off", "-w", "-shared", "-fPIC")


def build() -> Path:
    """Return the operation's library, compiling it when this combination has none yet (about 10 s).

    Raises:
        RunError: there is no compiler or it fails; the message has its first error.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    compiler = _find_compiler()
    flags = _tensorflow_flags()
    folder = Path(__file__).parent
    identity = "\0".join(
        [
            MPI.Get_library_version(),
            _version(compiler),
            *flags,
            *_FLAGS,
            *((folder / name).read_text() for name in (*_SOURCES, *_HEADERS)),
        ]
    )
    from harness.base.cache import cache_folder, locked

    library = cache_folder() / "native" / hashlib.sha256(identity.encode()).hexdigest()[:16] / "libharness_comm.so"
    if library.exists():
        return library
    with locked(library.with_name("lock")):  # ranks start together: one compiles, the others wait
        if not library.exists():
            _compile(compiler, flags, folder, library)
    return library


def _compile(compiler: str, flags: list[str], folder: Path, library: Path) -> None:
    for left in library.parent.glob(f"{library.stem}.*"):  # by a build that was killed: the lock is ours now
        left.unlink()
    partial = library.with_suffix(f".{os.getpid()}")
    sources = [str(folder / name) for name in _SOURCES]
    finished = subprocess.run(
        [compiler, *_FLAGS, *sources, "-o", str(partial), *flags], capture_output=True, text=True, check=False
    )
    if finished.returncode:
        errors = [line for line in finished.stderr.splitlines() if "error" in line]
        raise RunError(f"the native operation does not compile: {errors[0] if errors else finished.stderr[-300:]}")
    partial.replace(library)


def _find_compiler() -> str:
    beside = find_launcher().with_name("mpicxx")
    compiler = str(beside) if beside.exists() else shutil.which("mpicxx")
    if compiler is None:
        raise RunError("no MPI compiler mpicxx beside mpirun: install the MPI library's development files")
    return compiler


def _version(compiler: str) -> str:
    answer = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RunError(f"the compiler behind {compiler} does not start: install g++ ({answer.stderr.strip()[:200]})")
    return answer.stdout


def _tensorflow_flags() -> list[str]:
    import tensorflow as tf

    return [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]


def main() -> None:
    """Build at set-up, so that the first launch need not; without a compiler say what will be used instead."""
    from harness.base.logs import quiet_stderr

    try:
        with quiet_stderr():
            build()
    except RunError as error:
        print(f"{error}; until then the slower numpy_function bridge is used")


if __name__ == "__main__":
    main()
