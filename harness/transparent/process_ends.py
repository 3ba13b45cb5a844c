"""What ends a script's process without Python's own end: `os._exit`, and another program in its place.

MPI takes a process that goes so for one that has failed, and the run would have no end: no comparison of the replicas,
no record.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from harness.base.errors import UserError
from harness.comm.world import World, abort
from harness.transparent.patch import is_script, put, script_place

_PROGRAMS = ("execv", "execve")  # which all of Python's `os.exec...` call


class ProcessEnds:
    """Has a script's `os._exit` end the run first, and keeps a rank from being replaced by another program.

    `world` is None where the script runs alone. `end_run` ends the run of this process, whose script asks for an exit
    code, and returns the process's own.
    """

    def __init__(self, world: World | None, script: str, end_run: Callable[[int], int]) -> None:
        self._world = world
        self._script = script
        self._end_run = end_run
        self._process = os.getpid()  # what a script has forked ends as it likes
        self._exit: Callable[[int], NoReturn] = os._exit

    def install(self) -> None:
        """Replace `os._exit`, `os.execv` and `os.execve`; in what is forked from this process they are as before."""
        put(os, "_exit", self._end)
        for name in _PROGRAMS:
            put(os, name, self._guarded(getattr(os, name)))

    def _end(self, status: int) -> None:
        """End this process: its run first, where it is the script that ends it."""
        caller = sys._getframe(1)
        if os.getpid() != self._process or not is_script(caller.f_code.co_filename):
            self._exit(status)
        if self._world is not None and threading.current_thread() is not threading.main_thread():
            abort(
                self._world,
                UserError(
                    f"{self._script} ends its process in a thread (os._exit in {script_place(caller)}), which no other "
                    "rank can wait for: return from the script, or run it with -n 1"
                ),
            )
        code = self._end_run(status)
        _finalize()
        self._exit(code)

    def _guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what replaces the process where no other rank waits for it."""

        def execute(*words: Any) -> Any:
            if os.getpid() != self._process:
                return original(*words)
            if self._world is not None:
                raise UserError(
                    f"{self._script} puts another program in its own place ({_exec_place()}), which is no rank: set "
                    "what it sets for that program before the start, as in `PYTHONHASHSEED=1 harness run`, or run it "
                    "with -n 1"
                )
            _finalize()
            return original(*words)

        return execute


def end_at_exec(end: Callable[[], None]) -> None:
    """Have this process, a witness, `end` where its script would put another program in its place."""
    for name in _PROGRAMS:
        put(os, name, lambda *_: end())


def _exec_place() -> str:
    """Return where the script asks for another program in its place, in words."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == os.__file__:
        frame = frame.f_back
    return f"os.exec in {script_place(frame)}"


def _finalize() -> None:
    """End MPI in this process."""
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()
