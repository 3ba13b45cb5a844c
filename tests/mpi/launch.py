"""Start rank programs under mpirun, more ranks than cores if need be: for function, never for timing."""

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.base.scratch import of_process
from harness.comm.mpi_library import AS_ROOT, find_mpi, mpi4py_variables
from harness.sweep.launch_command import mpirun_words

PROGRAMS = Path(__file__).parent
ROOT = PROGRAMS.parents[1]
_WARM = ROOT / "harness" / "sweep" / "fork_server.py"
_CLIENT = """#!/bin/sh
case "$1" in
-c | *.py) exec '{python}' -S '{warm}' "{folder}/$(uname -n)" "$@" ;;
-m) case "$2" in harness* | tests*) exec '{python}' -S '{warm}' "{folder}/$(uname -n)" "$@" ;; esac ;;
esac
exec '{python}' "$@"
"""


@functools.cache
def warm_python() -> str:
    """Return a program to be called in place of Python; its children are forked by `harness.sweep.fork_server`.

    It ends with the session.
    """
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    folder.chmod(0o755)
    program, servers = serve_warm(folder, {os.uname().nodename: ()})

    def end() -> None:
        end_warm(servers)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return program


def serve_warm(folder: Path, hosts: Mapping[str, Sequence[str]]) -> tuple[str, list["subprocess.Popen[bytes]"]]:
    """Start a server on every one of `hosts`, behind the words that enter it; return `warm_python`'s program and them.

    `folder` is theirs, and all hosts' have it.
    """
    program = folder / "python"
    program.write_text(_CLIENT.format(python=sys.executable, warm=_WARM, folder=folder))
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    servers = [
        subprocess.Popen(
            [*enter, sys.executable, _WARM, "--serve", folder / name, program],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        for name, enter in hosts.items()
    ]
    for name, server in zip(hosts, servers, strict=True):
        while not (folder / name).exists():
            assert server.poll() is None, "the server did not start"
            time.sleep(0.05)
    return str(program), servers


def end_warm(servers: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End servers that `serve_warm` has started."""
    for server in servers:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


def run_ranks(
    ranks: int,
    *arguments: object,
    timeout: float = 1200,
    cwd: Path | None = None,
    python: str | None = None,
    outlives: bool = False,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run `python arguments` on `ranks` ranks; fail the test when it takes longer than `timeout` seconds.

    They start in folder `cwd`. `python` is `warm_python`, or ``sys.executable`` for ranks with a Python of their own.
    With `outlives` they go on when one of them is lost.
    """
    return subprocess.run(
        [*rank_command(ranks, python or warm_python(), outlives=outlives), *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        cwd=cwd,
        env={**rank_environment(), **environment},
        check=False,
    )


def rank_command(ranks: int, python: str = sys.executable, *, outlives: bool = False) -> list[str]:
    """Return the command that starts Python on `ranks` ranks, which go on without a lost one if told so."""
    mpi = find_mpi()
    launcher, *words = mpirun_words(mpi.mpirun, mpi.family, ranks, oversubscribe=True)
    return [launcher, *(("--with-ft", "ulfm") if outlives else ()), *words, python]


def rank_environment() -> dict[str, str]:
    """Return the environment of ranks that share cores."""
    shared = {"OMPI_MCA_mpi_yield_when_idle": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    library = {name: value for name, value in mpi4py_variables(find_mpi()).items() if value is not None}
    return {**os.environ, **AS_ROOT, **of_process().variables, **shared, **library}


def result(ranks: int, program: str, *arguments: object) -> Any:
    """Return what rank 0 of tests/mpi/`program` printed behind RESULT, as JSON."""
    finished = run_ranks(ranks, PROGRAMS / program, *arguments)
    assert finished.returncode == 0, finished.stderr[-3000:]
    lines = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, finished.stdout
    return json.loads(lines[0].removeprefix("RESULT "))
