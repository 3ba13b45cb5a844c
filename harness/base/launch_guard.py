"""A process beside a command that ends what the command has started, should the command be killed (``kill -9``).

``python -m harness.base.launch_guard TOKEN`` reads its standard input, whose other end only the command has. A command
that ends in an orderly way sends a byte. Where the input ends without one, the command is dead: all processes with
``HARNESS_GUARD=TOKEN`` in their environment are ended, and what their launch has left in memory and on local disk goes.
Launches of a batch scheduler have no guard: they are to outlive the command.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from harness.base.scratch import remove_launch_files, remove_segments

JOB = "HARNESS_JOB"
"""Environment variable of all that a local job starts, its name: the next command finds it again."""
_GUARD = "HARNESS_GUARD"  # of all that a guard ends; another one for each: a new launch may have an old one's name
_GRACE_S = 4.0  # between SIGTERM and SIGKILL: mpirun ends its ranks meanwhile
_CALM_S = 0.5  # without any process: one that was just being started would have shown
_LIMIT_S = 60.0  # for a process that the kernel does not end
_PAUSE_S = 0.1


class LaunchGuard:
    """The guard of this process over what it starts with `variables` in its environment, until it is dismissed."""

    def __init__(self) -> None:
        token = secrets.token_hex(16)
        self.variables = {_GUARD: token}
        package = Path(__file__).parents[2]
        environment = {
            name: text for name, text in os.environ.items() if name not in (JOB, _GUARD)
        }  # no part of another launch
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
        environment["PYTHONSAFEPATH"] = "1"  # nothing is imported from the working directory
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def end(self, *, orderly: bool) -> None:
        """End the guard; where the launch did not end in an `orderly` way, after all that is left of it."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(b"x" if orderly else b"")


def find_processes(variable: str, value: str) -> list[psutil.Process]:
    """Return every process of this user that was started with `value` in `variable`, whoever its parent is by now."""
    family = []
    user = os.getuid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is another user's
            if process.uids().real != user or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(variable) == value:
                family.append(process)
    return family


def end_processes(variable: str, value: str) -> set[int]:
    """End all processes with `value` in `variable`, and those that they start meanwhile; return their process ids."""
    signalled: set[psutil.Process] = set()
    begun = calm_since = time.monotonic()
    while time.monotonic() < min(calm_since + _CALM_S, begun + _LIMIT_S):
        family = find_processes(variable, value)
        late = time.monotonic() > begun + _GRACE_S
        for process in family:
            if late or process not in signalled:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL if late else signal.SIGTERM)
        signalled.update(family)
        if family:
            calm_since = time.monotonic()
        time.sleep(_PAUSE_S)
    return {process.pid for process in signalled}


def main() -> None:
    """Wait for the end of the command, and end what it has left if it was killed."""
    if sys.stdin.buffer.read(1):
        return
    pids = end_processes(_GUARD, sys.argv[1])
    remove_segments(pids)
    remove_launch_files()


if __name__ == "__main__":
    main()
