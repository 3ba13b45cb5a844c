"""When a signal reaches one rank, the script's handler runs on all ranks, at the next batch."""

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from harness.transparent.patch import HorovodScript, is_own_code

_LATE_S = 5.0  # a signal that all ranks get reaches the last of them by then


class AgreedSignals:
    """Runs a handler of the script's on all ranks, at the next batch, when a signal has reached any of them."""

    def __init__(self) -> None:
        self.gather: Callable[..., list[Any]] | None = None  # of the ranks, once there is training
        self.trains: Callable[[], bool] = lambda: False
        self._handlers: dict[int, Callable[..., Any]] = {}
        self._pending: set[int] = set()
        self._served: dict[int, float] = {}  # when a signal's handler has run here for another rank's
        self._original: Callable[..., Any] = signal.signal

    @property
    def awaited(self) -> bool:
        """Whether the script handles signals."""
        return bool(self._handlers)

    def install(self) -> None:
        """Replace `signal.signal` and `signal.getsignal`."""
        original_getsignal = signal.getsignal
        self._original = signal.signal
        module: Any = signal
        module.signal = self._set
        module.getsignal = lambda number: self._handlers.get(int(number)) or original_getsignal(number)

    def _set(self, number: int, handler: Any) -> Any:
        """Have `handler` run when a signal comes."""
        if HorovodScript.active or not callable(handler) or not is_own_code(sys._getframe(1).f_code.co_filename):
            self._handlers.pop(int(number), None)
            return self._original(number, handler)
        replaced_handler = self._handlers.get(int(number))
        self._handlers[int(number)] = handler
        previous = self._original(number, self._note)
        return replaced_handler or previous

    def _note(self, number: int, frame: Any) -> None:
        """Note a signal; before anything is trained its handler runs at once."""
        now = time.monotonic()
        if self.gather is None or HorovodScript.active or not self.trains():
            self._handlers[number](number, frame)
        elif now - self._served.pop(number, -_LATE_S) >= _LATE_S:
            self._pending.add(number)

    def leave_ranks(self) -> None:
        """Run handlers at once: in a child process."""
        self.gather = None

    def meet(self) -> None:
        """Run the handlers of signals that have reached any rank since; all ranks together."""
        if not self._handlers or self.gather is None or HorovodScript.active:
            return
        pending = self._pending
        self._pending = set()
        rank_numbers = self.gather(sorted(pending), "signals")
        for number in sorted({number for numbers in rank_numbers for number in numbers}):
            if number not in pending:
                self._served[number] = time.monotonic()
            if number in self._handlers:
                self._handlers[number](number, sys._getframe(1))
