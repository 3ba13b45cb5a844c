"""What a script reads from a clock is what rank 0 has read at the same place.

Ranks whose clocks differ would leave a loop at different steps.
"""

import ctypes
import gc
import sys
import threading
import time
import timeit
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from harness.base.turns import current_turns
from harness.comm.world import World
from harness.transparent.clocks.clock_line import ClockLine
from harness.transparent.patch import HorovodScript, is_own_code

_SECONDS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")
_CLOCKS = (*_SECONDS, *(f"{name}_ns" for name in _SECONDS))
_TAG = 7_105  # of the messages with what rank 0's clocks say
_PATIENCE_S = 10.0  # for a reading of rank 0's, which may be waiting for the witness
_LATER_PATIENCE_S = 2.0  # once a reading has not come


class AgreedClocks:
    """Clocks that show the script, on every rank, what rank 0 has read at the same place of the same step.

    Rank 0 sends each of its readings and waits for nobody. Where rank 0 has not read a clock, a rank reads its own. In
    a turn block the time in which others had their turns is left out.

    `line`: how the witness and the threads of ranks hear of rank 0's readings; None where each reads its own clocks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.line: ClockLine | None = None
        self.steps: Callable[[], int] = lambda: 0  # of the script so far
        self.now: Callable[[], float] = time.monotonic  # by which a rank's patience ends
        self._asked: Counter[tuple[Any, ...]] = Counter()
        self._received: dict[tuple[Any, ...], float] = {}
        self._sent: deque[Any] = deque()
        self._patience_s = _PATIENCE_S
        self._step = 0  # of the script now
        self._latest = 0  # the step of the last reading that has come
        self._original_members: Mapping[str, Any] = {}  # of `datetime.datetime`

    def install(self) -> None:
        """Replace the clocks of `time` and `timeit`, and what tells `datetime` the time."""
        read_time = time.time
        for name in _CLOCKS:
            setattr(time, name, self._wrapped(getattr(time, name), 1e9 if name.endswith("_ns") else 1.0))
        timeit.default_timer = time.perf_counter
        readers = {"now": None, "utcnow": UTC}  # `today` asks `time.time`
        self._replace_members({name: self._datetime_reader(name, read_time, zone) for name, zone in readers.items()})

    def put_back(self) -> None:
        """Put the original clocks back: in a child process."""
        for name in _CLOCKS:
            clock = getattr(time, name)
            setattr(time, name, getattr(clock, "__wrapped__", clock))
        timeit.default_timer = time.perf_counter
        self._replace_members(self._original_members)

    def _replace_members(self, members: Mapping[str, Any]) -> None:
        """Put `members` into the class `datetime.datetime`, and keep the original ones.

        It is compiled, so that it takes no attributes; in a subclass's place, its objects could not be pickled.
        """
        namespace = gc.get_referents(vars(datetime))[0]
        self._original_members = {name: namespace[name] for name in members}
        namespace.update(members)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))

    def _datetime_reader(self, name: str, read_time: Callable[[], float], zone: Any) -> "classmethod[Any, ..., Any]":
        """Return a method of `datetime.datetime` that reads a clock; what is `zone`'s time has no time zone."""

        def read(cls: Any, tz: Any = None) -> Any:
            reading = self._shown(read_time(), 1.0, sys._getframe(1), name)
            return cls.fromtimestamp(reading, tz or zone).replace(tzinfo=tz)

        return classmethod(read)

    def _wrapped(self, original: Callable[..., Any], units: float) -> Callable[..., Any]:
        """Return the `original` clock, which counts so many `units` a second, as a script is to see it."""

        def clock(*arguments: Any) -> Any:
            return self._shown(original(*arguments), units, sys._getframe(1), original.__name__)

        clock.__name__ = original.__name__
        clock.__wrapped__ = original  # type: ignore[attr-defined]
        return clock

    def _shown(self, value: Any, units: float, frame: Any, name: str) -> Any:
        """Return what code at `frame` is to see where the clock `name` says `value`, so many `units` a second."""
        if not is_own_code(frame.f_code.co_filename):
            return value
        turns = current_turns()
        if turns is not None:
            value -= type(value)(turns.state.paused * units)
        thread = threading.current_thread()
        if HorovodScript.active or isinstance(thread, threading._DummyThread):  # TensorFlow's, in whatever order
            return value
        place = (frame.f_code.co_filename, frame.f_lineno, name)
        by_messages = self._world.size > 1 and thread is threading.main_thread()
        if by_messages:
            value = self.agreed(value, place)
        if self.line is not None and not (by_messages and self._world.rank):
            return self.line.agreed(value, place)
        return value

    def agreed(self, value: Any, place: tuple[Any, ...]) -> Any:
        """Return rank 0's reading at a `place` of the script; `value` is this rank's own."""
        step = self.steps()
        if step != self._step:
            self._step = step
            self._asked.clear()
            self._received = {key: reading for key, reading in self._received.items() if key[0] >= step}
        self._asked[(step, place)] += 1
        key = (step, place, self._asked[(step, place)])
        comm = self._world.comm
        if self._world.rank == 0:
            self._sent += [comm.isend((key, value), dest=rank, tag=_TAG) for rank in range(1, self._world.size)]
            while self._sent and self._sent[0].Test():
                self._sent.popleft()
            return value
        deadline = self.now() + self._patience_s
        while key not in self._received and self._latest <= step and self.now() < deadline:
            self._receive()
            if key not in self._received:
                time.sleep(0)
        self._receive()
        if self.now() >= deadline:
            self._patience_s = _LATER_PATIENCE_S
        return self._received.pop(key, value)

    def _receive(self) -> None:
        """Take the readings that rank 0 has sent."""
        comm = self._world.comm
        while comm.iprobe(source=0, tag=_TAG):
            key, value = comm.recv(source=0, tag=_TAG)
            self._latest = max(self._latest, key[0])
            self._received[key] = value
