"""A rank that trains in turns with the launches that it is compared with, and waits for them without using a core.

The other end is `harness.sweep.referee`. This module needs nothing but the standard library: a program that is not ours
takes turns by `join_turns` before its first step and `Turns.step` in every one.
"""

import contextlib
import ctypes
import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

TURNS = "HARNESS_TURNS"
"""Environment variable of every rank of a block: address and port of the referee, and the word that names its set."""
BLOCK = "HARNESS_BLOCK"
"""Environment variable of every rank of a block: its name, which the launch's record keeps."""

APART = "HARNESS_APART"
"""Environment variable of launches that were to take turns and train one after the other: how many they are."""

READY = "ready"
"""What a rank says before its first turn."""
LONGEST_LINE = 16384
"""Bytes of a line: a rank on 1,000 processors lists them in 4,000."""
_LONGEST_NUMBER = 18  # digits


def keep_alive(connection: socket.socket) -> None:
    """Have `connection` send without delay, and break off when its other end's host has been silent for two minutes."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000)  # of what was sent and not taken


class Greeting(NamedTuple):
    """What a rank says first: the word that names its set, its place among `ranks`, and the cores that it may use."""

    password: str
    rank: int
    ranks: int
    cores: str

    def line(self) -> str:
        """Return it as it is sent."""
        return f"rank {self.password} {self.rank} {self.ranks} {self.cores}"

    @classmethod
    def parse(cls, line: str) -> "Greeting | None":
        """Return the greeting in `line`, None where that is none."""
        words = line.split()
        if words[:1] != ["rank"] or len(words) != 5 or not all(map(_is_number, words[2:4])):
            return None
        return cls(password=words[1], rank=int(words[2]), ranks=int(words[3]), cores=words[4])


class TurnOrder(NamedTuple):
    """What a referee tells a rank: to make turn number `turn` (from 1), of `steps` timed steps, on `cores`.

    0 steps are all to the end. `paused_s` are the seconds that its set has waited for its turns so far.
    """

    turn: int
    steps: int
    paused_s: float
    cores: str

    def line(self) -> str:
        """Return it as it is sent."""
        return f"go {self.turn} {self.steps} {self.paused_s:.9f} {self.cores}"

    @classmethod
    def parse(cls, line: str) -> "TurnOrder | None":
        """Return the order in `line`, None where that is empty: the referee has gone."""
        words = line.split()
        if not words:
            return None
        return cls(turn=int(words[1]), steps=int(words[2]), paused_s=float(words[3]), cores=words[4])


class TimedSteps(NamedTuple):
    """What was timed of a turn: steps, their seconds, and the cores that the process had meanwhile."""

    steps: int
    seconds: float
    cores_had: float


class TurnReport(NamedTuple):
    """What a rank tells of a turn that it has made; no step follows the `last`.

    `core_ns` is how far apart the ranks' cores are, `cores` are those that the rank might use.
    """

    last: bool
    timed: TimedSteps
    core_ns: float
    cores: str

    def line(self) -> str:
        """Return it as it is sent."""
        word = "last" if self.last else "done"
        timed = f"{self.timed.steps} {self.timed.seconds:.9f} {self.timed.cores_had:.4f}"
        return f"{word} {timed} {self.core_ns:.1f} {self.cores}"

    @classmethod
    def parse(cls, line: str) -> "TurnReport | None":
        """Return the report in `line`, None where that is none."""
        words = line.split()
        if len(words) != 6 or words[0] not in ("last", "done") or not _is_number(words[1]):
            return None
        try:
            timed = TimedSteps(steps=int(words[1]), seconds=float(words[2]), cores_had=float(words[3]))
            return cls(last=words[0] == "last", timed=timed, core_ns=float(words[4]), cores=words[5])
        except ValueError:
            return None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _LONGEST_NUMBER


TRIED_ROUNDS = 2
"""First rounds of a block, from which the number of steps in a turn is found. They are not counted."""


def turn_of_round(number: int) -> int:
    """Return the number of the turn, from 1, that a set of ranks has in a counted round, from 0."""
    return number + TRIED_ROUNDS + 1


NOTHING_TIMED = TimedSteps(steps=0, seconds=0.0, cores_had=0.0)


class TurnState(ctypes.Structure):
    """What the native operation shares with Python: passes left, time of the last pass, seconds of waiting."""

    _fields_ = (("left", ctypes.c_int64), ("last", ctypes.c_double), ("paused", ctypes.c_double))
    left: int
    last: float
    paused: float


class Turns:
    """The turns of this process, rank `rank` of `ranks` of its set.

    A turn has `first_steps`, trained but not timed as caches are cold (0: three of them, one before three long steps),
    and then those that are timed; it ends at a pass of `step`. Between turns the rank waits in a read of its socket.
    `busy_s` returns the CPU seconds of its host so far; `host_s` are those of its waits. A turn is made on the cores
    that it names; `windows` has when each began and ended, and `at_ends` is called at both. `core_ns` is called on all
    ranks as one begins, and returns how far apart their cores are (`harness.comm.core_ping.core_distance`).
    `synchronise`, where a device works on while the host goes on, waits for what it has to do: no time of a turn ends
    before that.
    """

    def __init__(self, address: str, rank: int, ranks: int, busy_s: Callable[[], float] = lambda: 0.0) -> None:
        host, port, password = address.rsplit(":", 2)
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._socket.settimeout(None)
        keep_alive(self._socket)
        self._file = self._socket.makefile("rwb", buffering=0)
        self._cores = _own_cores()
        self._tell(Greeting(password=password, rank=rank, ranks=ranks, cores=self._cores).line())
        self.state = TurnState(0, 0.0, 0.0)
        self.first_steps = 0
        self._busy_s = busy_s
        self.host_s = 0.0
        self.core_ns: Callable[[], float] = lambda: 0.0
        self.synchronise: Callable[[], None] | None = None
        self._distance = 0.0
        self.turn = 0  # its number, from 1
        self._steps = 0  # of the turn that are timed
        self._begin: float | None = None  # of those
        self._cpu_s = 0.0  # of this process, at that begin
        self._timed: TimedSteps | None = None  # what was timed, where the turn ends before its time
        self._passed = self._asked = 0  # passes before the last boundary, and from there to the next one
        self.windows: list[tuple[float, float]] = []  # of turns, by time.monotonic
        self.at_ends: Callable[[], None] | None = None
        self._opened = 0.0
        self._marks = [(0, 0)]  # from which pass on steps are timed in which turn, 0 for none
        self._until(1)

    def step(self, steps: int = 1) -> None:
        """Pass, once a step, at the same place of every step: here a turn ends and the next one begins.

        A loop that is compiled passes after several `steps` at once, no more than are left (`ahead`).
        """
        self.state.last = clock()
        self.state.left -= steps
        if self.state.left == 0:
            self.boundary()

    def ahead(self, most: int) -> int:
        """Return how many steps, up to `most`, can be made before the next pass."""
        return min(most, self.state.left) if self.state.left > 0 else most

    def rest(self) -> None:
        """Let steps pass until `wait`: those of a warm-up are no training. Without, the first step waits."""
        self._asked = self.state.left = 0

    def wait(self) -> None:
        """Say that this rank is ready and wait for its first turn."""
        self.boundary()

    def boundary(self, *, last: bool = False) -> int:
        """Go on after the first steps of a turn, or end the turn and wait for the next; return the passes left."""
        self._passed += self._asked - self.state.left
        self._await_device()
        if self.turn and self._begin is None and self._timed is None:
            self._cpu_s = time.process_time()
            self._begin = clock()
            return self._until(self._steps, self.turn)
        if self.turn:
            self.windows.append((self._opened, self._end_of_turn()))
            timed = self._timed or self._measure(self._steps)
            self._tell(TurnReport(last=last, timed=timed, core_ns=self._distance, cores=self._cores).line())
        else:
            self._tell(READY)
        busy_s = self._busy_s()
        order = self._await_order()
        if order is None:  # the referee has gone, or its host, and its block with it
            os._exit(1)
        self.turn = order.turn
        self._opened = self._end_of_turn()
        self._steps = order.steps
        self._begin = None
        self._timed = None
        self.state.paused = order.paused_s
        self.host_s += self._busy_s() - busy_s
        if order.cores != self._cores:
            self._cores = _move(order.cores)
        self._distance = self.core_ns() if self._steps else 0.0
        if not self._steps:
            return self._until(_FOREVER)
        return self._until(self.first_steps or max(1, min(3, self._steps - 2)))

    def _await_order(self) -> TurnOrder | None:
        """Wait for the next order; return None where none will come."""
        line = b""
        with contextlib.suppress(OSError):
            line = self._file.readline()
        return TurnOrder.parse(line.decode())

    def _end_of_turn(self) -> float:
        """Return the time of time.monotonic, at one of the ends of a turn."""
        if self.at_ends is not None:
            self.at_ends()
        return time.monotonic()

    def leave(self) -> None:
        """End the turn's time at the last pass: what follows is no step, such as the evaluation after an epoch."""
        if not self._steps or self._timed is not None:
            return
        steps = self._asked - self.state.left
        self._await_device()
        self._timed = self._measure(steps)
        self._passed += steps
        self._until(1)

    def _await_device(self) -> None:
        """Have the last pass be when the device has done all that it was given before."""
        if self.synchronise is not None and self.turn:
            self.synchronise()
            self.state.last = clock()

    def resume(self, since: float) -> None:
        """Leave what was `since` a moment of `clock` out of the turn's time: a pause of all ranks between two steps."""
        if self._begin is not None:
            pause = clock() - since
            self._begin += pause
            self.state.last += pause

    def finish(self) -> None:
        """Say that no step follows, and wait until no other launch of the block trains: what comes now takes long."""
        self.leave()
        self._timed = self._timed or NOTHING_TIMED
        self.boundary(last=True)

    def take_marks(self, steps: int) -> list[int]:
        """Return for the last `steps` passes the number of the turn in which each was timed, 0 where it was not."""
        passed = self._passed + self._asked - self.state.left
        marks: list[int] = []
        for (begin, turn), end in zip(self._marks, [*(begin for begin, _ in self._marks[1:]), passed], strict=True):
            marks += [turn] * (end - begin)
        self._marks = [(passed, self._marks[-1][1])]
        return marks[len(marks) - steps :]

    def _measure(self, steps: int) -> TimedSteps:
        """Return what was timed of the turn, whose last pass was that of step `steps`."""
        if self._begin is None or not steps:
            return NOTHING_TIMED
        cores_had = (time.process_time() - self._cpu_s) / (clock() - self._begin)
        return TimedSteps(steps=steps, seconds=self.state.last - self._begin, cores_had=cores_had)

    def _until(self, passes: int, turn: int = 0) -> int:
        """Have `boundary` called after `passes` passes of steps that are timed in `turn`."""
        self._asked = self.state.left = passes
        self._marks.append((self._passed, turn))
        return passes

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the next order does not come either
            self._file.write(f"{text}\n".encode())


def _own_cores() -> str:
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def _move(cores: str) -> str:
    """Move this process to `cores`, and return those on which it is: there may be limits."""
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - between two turns
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), set(map(int, cores.split(","))))
    return _own_cores()


_FOREVER = 2**62
_turns: Turns | None = None


def join_turns(rank: int, ranks: int, busy_s: Callable[[], float] = lambda: 0.0) -> Turns | None:
    """Return the turns of this process, which takes them from now on; None where it is in no block."""
    global _turns
    address = os.environ.pop(TURNS, None)  # a script's copy of this module, or its processes, join nothing again
    if address:
        _turns = Turns(address, rank, ranks, busy_s)
    return _turns


def current_turns() -> Turns | None:
    """Return the turns that this process has joined."""
    return _turns


def clock() -> float:
    """Return seconds on the clock of time.perf_counter, less those in which this process waited for its turns."""
    return time.perf_counter() - (_turns.state.paused if _turns is not None else 0.0)
