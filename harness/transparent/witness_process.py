"""The witness process: it runs the script alone, and sends what it sees to rank 0."""

import contextlib
import os
import queue
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.transparent.observations import Observation
from harness.transparent.run_settings import INPUT
from harness.transparent.witness import NUDGES, PeerRank

_REST_S = 30.0  # that it goes on without anything to compare


class WitnessProcess(PeerRank):
    """The witness's end: it sends what it sees of `steps` gradients of each training, until rank 0 hangs up."""

    beside = True

    def __init__(self, line: Connection, ranks: int, steps: float) -> None:
        super().__init__(steps=steps, over=False)
        self._line = line
        self.ranks = ranks
        self.nudges = bool(os.environ.pop(NUDGES, ""))
        self._asked = 0
        self._rests_since: float | None = None
        self._sends = threading.Lock()
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._end_after_rest, daemon=True).start()

    def _end_after_rest(self) -> None:
        """End this process where nothing has been looked at for long."""
        while self._rests_since is None or time.monotonic() - self._rests_since < _REST_S:
            time.sleep(1.0)
        self.end()

    def rest(self) -> None:
        """Leave the cores to the ranks."""
        self._rests_since = time.monotonic()
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), 19)

    def begins(self) -> None:
        """Be looked at again."""
        self._rests_since = None

    def _listen(self) -> None:
        try:
            while (told := self._line.recv()) is not None:
                self._told.put(told[0])
        except (EOFError, OSError):
            pass
        self.end()

    def share(self, value: Any) -> Any:
        """Wait for rank 0's, which is told that this process waits."""
        self._asked += 1
        with self._sends:
            self._line.send(self._asked)
        return self._told.get()

    def take(self, seen: Observation) -> None:
        """Tell rank 0."""
        with self._sends:
            self._line.send(seen)

    def reads(self) -> None:
        """End, if anything has been trained: what rank 0 has in the file may be of another step."""
        if self._step:
            self.end()

    def end(self, why: str = "") -> None:
        """End this process."""
        os._exit(0)


def enter() -> tuple[WitnessProcess, tuple[Any, ...]]:
    """Be the witness that `start` has started; return it and its words."""
    line = Connection(os.dup(0))
    with Path(os.environ.get(INPUT, os.devnull)).open() as given:
        os.dup2(given.fileno(), 0)
    ranks, steps, *words = line.recv()
    return WitnessProcess(line, ranks, steps), tuple(words)
