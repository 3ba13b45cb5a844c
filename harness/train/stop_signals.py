"""Signals that ask a launch to stop: it ends between two steps, with a checkpoint to resume from."""

import os
import signal
import socket
import threading
from collections.abc import Callable

from harness.base.exit_codes import SIGNALLED


class Stopped(Exception):
    """The launch ends early, on all ranks, with a checkpoint to resume from; exit code AGAIN."""


class StopSignals:
    """SIGTERM and SIGUSR1 as requests that a rank answers between two steps.

    While TensorFlow runs a graph Python's own handlers wait: a thread learns of signals at once, by way of a socket
    that Python's handler in C writes to. A SIGTERM ends the process at once, as without this, where a checkpoint is
    not `worth` it. To be made in the main thread.
    """

    def __init__(self, worth: Callable[[], bool]) -> None:
        self._worth = worth
        self.asked = 0
        """The number of the signal that asks to stop, 0 without one."""
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signals = (signal.SIGTERM, signal.SIGUSR1)
        self._wanted = [number for number in signals if signal.getsignal(number) == signal.SIG_DFL]
        for number in self._wanted:
            signal.signal(number, lambda *_: None)  # the thread does it
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Let SIGTERM end the process again; a warning that comes so late is ignored: the launch ends by itself."""
        signal.set_wakeup_fd(self._wakeup)
        for number in self._wanted:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        self._writer.close()  # ends the thread

    def _watch(self) -> None:
        with self._reader:
            while number := self._reader.recv(1):
                if number[0] not in self._wanted:
                    continue
                if number[0] == signal.SIGTERM and not self._worth():
                    os._exit(SIGNALLED + number[0])
                self.asked = number[0]
