"""What a script reads from its surroundings, as in one process: its rank, clocks, signals.

Ranks whose clocks differ, or of which one gets a signal, would leave a loop at different steps. A rank that knows that
it is rank 1 would leave out what the script does on rank 0 only. So every rank sees that it is rank 0 of 1. What the
script reads from a clock is what rank 0 has read at the same place. When a signal reaches one rank, its handler runs on
all ranks, at the next batch.
"""

import ctypes
import gc
import os
import signal
import sys
import sysconfig
import threading
import time
import timeit
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from harness.base.turns import current_turns
from harness.comm.world import World
from harness.transparent.clock_line import ClockLine
from harness.transparent.patch import HorovodScript, is_script

RANKS = "HARNESS_RANKS"
"""Environment variable: how many ranks there are, for code that must know it (`DataSet`)."""

_RANK_VARIABLES = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK", "PMIX_RANK", "PMI_RANK"),
    *("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_RANKID", "PALS_LOCAL_RANKID", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
    *("SLURM_PROCID", "SLURM_LOCALID", "RANK", "LOCAL_RANK"),
)
_SIZE_VARIABLES = (
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS"),
    *("SLURM_NPROCS", "SLURM_STEP_NUM_TASKS", "FLUX_JOB_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)
_WORLD = "COMM_WORLD"
_SECONDS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")
_CLOCKS = (*_SECONDS, *(f"{name}_ns" for name in _SECONDS))
_TAG = 7_105  # of the messages with what rank 0's clocks say
_PATIENCE_S = 10.0  # for a reading of rank 0's, which may be waiting for the witness
_LATER_PATIENCE_S = 2.0  # once a reading has not come
_LATE_S = 5.0  # a signal that all ranks get reaches the last of them by then
_STANDARD = sysconfig.get_path("stdlib")


@cache
def _is_own(file: str) -> bool:
    """Tell whether the code in `file` is the script's, and none of Python's own modules."""
    return is_script(file) and not file.startswith(_STANDARD)


class RankVariables:
    """Hides from a script which of several ranks it runs on."""

    def __init__(self) -> None:
        self._hidden: dict[str, str] = {}
        self._world: Any = None

    def hide(self, size: int) -> None:
        """Give the variables of launchers, and mpi4py's world, the values of one process."""
        from mpi4py import MPI

        for names, value in ((_RANK_VARIABLES, "0"), (_SIZE_VARIABLES, "1")):
            for name in names:
                if name in os.environ:
                    self._hidden[name] = os.environ[name]
                    os.environ[name] = value
        os.environ[RANKS] = str(size)
        self._world = MPI.COMM_WORLD
        setattr(MPI, _WORLD, MPI.COMM_SELF)

    def show(self) -> None:
        """Put the variables back, for a script that sees to its ranks itself."""
        if self._world is None:
            return
        from mpi4py import MPI

        os.environ.update(self._hidden)
        setattr(MPI, _WORLD, self._world)


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
        self._asked: Counter[tuple[Any, ...]] = Counter()
        self._received: dict[tuple[Any, ...], float] = {}
        self._sent: deque[Any] = deque()
        self._patience_s = _PATIENCE_S
        self._step = 0  # of the script now
        self._latest = 0  # the step of the last reading that has come
        self._original_members: Mapping[str, Any] = {}  # of `datetime.datetime`

    def install(self) -> None:
        """Replace the clocks of `time` and `timeit`, and what tells `datetime` the time."""
        self._now = time.monotonic
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
        if not _is_own(frame.f_code.co_filename):
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
            value = self._agreed(value, place)
        if self.line is not None and not (by_messages and self._world.rank):
            return self.line.agreed(value, place)
        return value

    def _agreed(self, value: Any, place: tuple[Any, ...]) -> Any:
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
        deadline = self._now() + self._patience_s
        while key not in self._received and self._latest <= step and self._now() < deadline:
            self._receive()
            if key not in self._received:
                time.sleep(0)
        self._receive()
        if self._now() >= deadline:
            self._patience_s = _LATER_PATIENCE_S
        return self._received.pop(key, value)

    def _receive(self) -> None:
        """Take the readings that rank 0 has sent."""
        comm = self._world.comm
        while comm.iprobe(source=0, tag=_TAG):
            key, value = comm.recv(source=0, tag=_TAG)
            self._latest = max(self._latest, key[0])
            self._received[key] = value


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
        if HorovodScript.active or not callable(handler) or not _is_own(sys._getframe(1).f_code.co_filename):
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
