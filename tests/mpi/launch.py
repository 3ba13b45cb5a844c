"""Start rank programs under mpirun, more ranks than cores if need be: for function, never for timing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.comm.launcher import AS_ROOT, find_launcher
from harness.sweep.launch_command import mpirun_words

PROGRAMS = Path(__file__).parent


def run_ranks(
    ranks: int, *arguments: object, timeout: float = 1200, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python arguments` on `ranks` ranks; fail the test when it takes longer than `timeout` seconds.

    They start in folder `cwd`.
    """
    return subprocess.run(
        [*rank_command(ranks), *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        cwd=cwd,
        env={**rank_environment(), **environment},
        check=False,
    )


def rank_command(ranks: int) -> list[str]:
    """Return the command that starts Python on `ranks` ranks."""
    return [*mpirun_words(find_launcher(), "openmpi", ranks, oversubscribe=True), sys.executable]


def rank_environment() -> dict[str, str]:
    """Return the environment of ranks that share cores."""
    return {**os.environ, **AS_ROOT, "OMPI_MCA_mpi_yield_when_idle": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def result(ranks: int, program: str, *arguments: object) -> Any:
    """Return what rank 0 of tests/mpi/`program` printed behind RESULT, as JSON."""
    finished = run_ranks(ranks, PROGRAMS / program, *arguments)
    assert finished.returncode == 0, finished.stderr[-3000:]
    lines = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, finished.stdout
    return json.loads(lines[0].removeprefix("RESULT "))
