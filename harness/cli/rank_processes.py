"""Run the ranks of a script as a process below this one: what they read, where they write, how they end."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.base import exit_codes
from harness.base.launch_guard import LaunchGuard
from harness.base.processes import interruptible
from harness.base.scratch import SCRATCH, Scratch
from harness.comm.harness_variables import EXIT_CODE_FILE

_GRACE_S = 10.0  # for mpirun to end its ranks


def run_ranks(
    command: Sequence[str], environment: Mapping[str, str | None], *, output: int | None, handles: Sequence[int]
) -> int:
    """Run `command` (mpirun and all) and return its exit code; a variable of None is unset.

    The ranks inherit standard error, and standard output unless they are to write to the descriptor `output`; mpirun
    inherits the open files `handles`. Where all ranks know with which code they end, it is in a file and mpirun's is 0.
    Ctrl-C, SIGTERM and a closed terminal end all of them, and so does the end of this process in any other way.
    """
    variables = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    with interruptible():
        guard = LaunchGuard()
        scratch = Scratch()
        code_file = Path(scratch.variables[SCRATCH]) / "left" if scratch.variables else None
        if code_file is not None:
            variables[EXIT_CODE_FILE] = str(code_file)
        child = subprocess.Popen(
            command,
            env=variables | scratch.variables | guard.variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            pass_fds=(*handles, *scratch.handles),
        )
        try:
            code = child.wait()
            if code == 0 and code_file is not None and code_file.exists():
                code = int(code_file.read_text())
        except KeyboardInterrupt:
            child.send_signal(signal.SIGTERM)  # mpirun ends its ranks
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            raise
        finally:
            scratch.close()
            guard.dismiss()
    return exit_codes.of_return_code(code)


def rank_input() -> str:
    """Return what every rank reads as its standard input: the file that is ours, else nothing.

    What mpirun would pass on of a file or pipe reaches rank 0 alone and never ends.
    """
    with contextlib.suppress(OSError):  # closed
        if stat.S_ISREG(os.fstat(0).st_mode):
            return f"/proc/{os.getpid()}/fd/0"
    return os.devnull


def rank_output() -> int | None:
    """Return where the script's output goes if not to standard output: there, JSON or nothing else may be."""
    try:
        return sys.stdout.fileno()
    except OSError:  # no file: a test's
        return None
