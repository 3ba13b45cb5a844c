"""Pythons that have TensorFlow imported already, from which processes are forked, and which ranks of a sweep are.

Most of the start of a block is the import of TensorFlow by all its ranks at once. Ranks that are forked share one
import, which is made before the first block. They have everything else of their own: `fork_server` says how.
"""

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.base.errors import RunError
from harness.base.files import write_atomic
from harness.base.processes import ONE_THREAD, OPTIONAL_OF_KERAS, thread_limits
from harness.base.scratch import SCRATCH, SHARED_MEMORY, Scratch
from harness.comm.mpi_library import Family, find_mpi
from harness.schema.point import Point
from harness.sweep import fork_server
from harness.sweep.job_plan import takes_turns
from harness.sweep.scheduler_answers import environment_of_no_job

IS_FORKING = "HARNESS_FORK"
"""Environment variable of a user: 1 has ranks forked where that is possible.

Forked ranks start sooner, and their steps take up to 2 % longer, for a reason that is not known: so it is not usual.
"""
_OF_RANKS = ("tensorflow", "keras", "h5py")
_MEMORIES = Path("/sys/devices/system/node")
_WARM_S = 120


@contextlib.contextmanager
def warm_python(
    folder: Path, *, python: str = sys.executable, changes: Mapping[str, str | None] | None = None
) -> Iterator[str]:
    """Start a `warm_server` and yield a program in `folder`, to be called in the place of `python`.

    TensorFlow is imported for one thread and without GPUs. `changes` are made to the environment of that, None unsets.

    Raises:
        RunError: it does not start.
    """
    program = folder / "python"
    environment = os.environ | ONE_THREAD | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    for name, value in (changes or {}).items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    with warm_server(folder, environment, python=python, children=str(program)) as client:
        write_atomic(program, f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
        program.chmod(0o755)
        yield str(program)


@contextlib.contextmanager
def warm_server(
    folder: Path,
    environment: Mapping[str, str],
    *,
    python: str = sys.executable,
    children: str = sys.executable,
    imported: Sequence[str] = fork_server.IMPORTED,
    absent: Sequence[str] = (),
) -> Iterator[tuple[str, ...]]:
    """Start `python`, import TensorFlow, and yield the words by which processes are forked from it.

    Twenty processes import TensorFlow for minutes; forked, twenty launches start in seconds. Nothing of the harness is
    imported yet: it is that of the child's PYTHONPATH. `environment` is that of the import: TensorFlow reads some
    variables then. The modules `imported` are, as if those that are `absent` were not installed. What is forked starts
    `children` as its own Python. Its socket and its log are in `folder`.

    Raises:
        RunError: it does not start.
    """
    address = folder / "warm"
    words = [python, fork_server.__file__, "--serve", str(address), children, ",".join(imported), ",".join(absent)]
    with (folder / "warm.log").open("wb") as log:
        server = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**environment, **fork_server.ROOM, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _WARM_S
        while not address.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                last = (folder / "warm.log").read_text(errors="replace").strip().rpartition("\n")[2]
                raise RunError(f"Python did not import TensorFlow: {last}")
            time.sleep(0.05)
        yield (python, "-S", fork_server.__file__, str(address))
    finally:
        assert server.stdin is not None
        server.stdin.close()  # it ends
        server.wait()


@contextlib.contextmanager
def forked_ranks(points: Sequence[Point], variables: Mapping[str, str | None]) -> Iterator[tuple[str, ...]]:
    """Yield the words by which the ranks of `points` start in the place of Python; none where each starts its own.

    `variables` are what the scheduler sets for them, None unsets.

    Raises:
        RunError: the Python that they are to be forked from does not start.
    """
    environment = _import_environment(points, variables)
    if environment is None:
        yield ()
        return
    scratch = Scratch()
    try:
        if not scratch.variables:
            raise RunError(f"there is no room in '{SHARED_MEMORY}'")
        folder = Path(scratch.variables[SCRATCH])
        with warm_server(folder, environment, imported=_OF_RANKS, absent=OPTIONAL_OF_KERAS) as words:
            yield words
    finally:
        scratch.close()


def _import_environment(points: Sequence[Point], variables: Mapping[str, str | None]) -> dict[str, str] | None:
    """Return the environment in which TensorFlow is imported for the ranks of `points`; None where they are not forked.

    They are where the user asks for it, and all have the same environment, train in turns and use no GPU: CUDA does not
    survive a fork. MPICH's launchers give their ranks an open socket, which a process that is forked elsewhere does not
    have. A machine with several memories is left out: what was imported would be near the cores of some ranks only. So
    is a program of the user's own that stands for Python.
    """
    is_python_itself = Path(sys.executable).resolve() == Path("/proc/self/exe").resolve()
    if os.environ.get(IS_FORKING) != "1" or not is_python_itself or find_mpi().family is not Family.OPEN_MPI:
        return None
    if len(list(_MEMORIES.glob("node[0-9]*"))) > 1:
        return None
    if not all(takes_turns(point) and not point.layout.gpus_per_rank for point in points):
        return None
    changes = {(point.layout.threads, point.settings) for point in points}
    if len(changes) != 1:
        return None
    threads, settings = changes.pop()
    wanted = {**variables, **thread_limits(threads), **dict(settings)}
    environment = {name: text for name, text in environment_of_no_job().items() if name not in wanted}
    return environment | {name: text for name, text in wanted.items() if text is not None}
