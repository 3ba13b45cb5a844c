"""The witness process: it runs the script alone, and sends its observations to rank 0."""

import contextlib
import os
import queue
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.schema.record_notes import Note
from harness.transparent.run_settings import INPUT
from harness.transparent.witness.observation import Beginning
from harness.transparent.witness.peer_rank import NUDGES, Observed, PeerRank

_REST_S = 30.0  # that it goes on without anything to compare
_LOWEST = 19
# Linux divides a desktop's time by sessions first (sched_autogroup), and the witness has a session of its own: the
# priorities of its threads count only among each other there.
SESSION = Path("/proc/self/autogroup")


class WitnessProcess(PeerRank):
    """The witness: it sends observations of `steps` gradients of each training, until rank 0 closes the connection."""

    is_witness = True

    def __init__(self, line: Connection, ranks: int, steps: float) -> None:
        super().__init__(steps=steps, over=False)
        self._line = line
        self.ranks = ranks
        self.nudges = bool(os.environ.pop(NUDGES, ""))
        self._asked = 0
        self._beginnings = 0
        self._sent_at = time.monotonic()
        self._rests = False
        self._sends = threading.Lock()
        self._shared: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._end_after_rest, daemon=True).start()

    def _end_after_rest(self) -> None:
        """End this process when it has been idle for `_REST_S` seconds."""
        while not self.is_idle or time.monotonic() - self._sent_at < _REST_S:
            time.sleep(1.0)
        self.end()

    def rest(self) -> None:
        """Leave the cores to the ranks."""
        self._rests = True
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), _LOWEST)
        _set_session_priority(_LOWEST)

    def begins(self) -> None:
        """Go on: another training is looked at."""
        super().begins()
        if self._rests:
            self._rests = False
            _set_session_priority(0)

    def _listen(self) -> None:
        try:
            while (message := self._line.recv()) is not None:
                self._shared.put(message[0])
        except (EOFError, OSError):
            pass
        self.end()

    def share(self, value: Any) -> Any:
        """Return rank 0's value at this place of the script; rank 0 is told that this process waits for it."""
        self._asked += 1
        with self._sends:
            self._line.send(self._asked)
        return self._shared.get()

    def meet(self) -> None:
        """Say that a training begins."""
        self.begins()
        self._beginnings += 1
        self.take(Beginning(self._beginnings))

    def take(self, observation: Observed) -> None:
        """Send an observation to rank 0."""
        self._sent_at = time.monotonic()
        with self._sends:
            self._line.send(observation)

    def reads(self) -> None:
        """End, if anything has been trained: what rank 0 has in the file may be of another step."""
        if self._step:
            self.end()

    def end(self, why: Note | None = None) -> None:
        """End this process and those that it has started, which would train on for nobody."""
        if os.getpgrp() == os.getpid():  # as `start_witness` starts it
            os.killpg(0, signal.SIGKILL)
        os._exit(0)


def _set_session_priority(priority: int) -> None:
    """Set the priority of this process's session, where the kernel has one; 19 is the lowest."""
    with contextlib.suppress(OSError):
        SESSION.write_text(str(priority))


def enter() -> tuple[WitnessProcess, tuple[Any, ...]]:
    """Be the witness that `start_witness` has started; return it, and the settings and the point of the launch."""
    line = Connection(os.dup(0))
    with Path(os.environ.get(INPUT, os.devnull)).open() as script_input:
        os.dup2(script_input.fileno(), 0)
    ranks, steps, *words = line.recv()
    return WitnessProcess(line, ranks, steps), tuple(words)
