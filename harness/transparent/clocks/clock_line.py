"""Rank 0's clocks for those on its host whom MPI's messages do not reach: the witness, and threads of other ranks.

MPI takes calls from one thread at a time, and the witness is no rank. Rank 0 numbers what its threads read at each
place of the script. The reading of the same number elsewhere shows rank 0's value.
"""

import contextlib
import os
import queue
import re
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Protocol

_MOST_KEPT = 100_000  # readings, for a witness that comes later, or a thread that may ask for them
_PATIENCE_S = 2.0  # of a rank's thread
WATCHED_PATIENCE_S = 10.0  # of a rank's thread while rank 0 may be waiting for the witness
WITNESS_PATIENCE_S = 60.0  # rank 0 may be compiling

Place = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where rank 0 is to be heard, and the secret that opens the connection."""

    name: str
    secret: bytes


class ClockLine(Protocol):
    """One end of the line."""

    def agreed(self, value: Any, place: Place) -> Any:
        """Return rank 0's reading where this thread has read `value` at a `place` of the script."""


class _Readings:
    """Numbers the readings at each place, of all threads of one name.

    Threads have other numbers in their names on each rank, and those of a pool have other tasks.
    """

    def __init__(self) -> None:
        self._count: Counter[Place] = Counter()
        self._lock = threading.Lock()

    def next(self, place: Place) -> Place:
        """Return the key of the current thread's reading at `place`, which begins with the thread's name."""
        name = re.sub(r"\d+", "", threading.current_thread().name)
        with self._lock:
            self._count[(name, place)] += 1
            return (name, place, self._count[(name, place)])


class ClockSource:
    """Rank 0's end. `is_watched`: whether a witness is there, or may still come, and hears the main thread too."""

    def __init__(self, is_watched: Callable[[], bool]) -> None:
        name = f"\0harness-clocks-{os.getpid()}-{secrets.token_hex(8)}"  # no file: the kernel's own list of sockets
        self.address = Address(name=name, secret=secrets.token_bytes(16))
        self._is_watched = is_watched
        self._readings = _Readings()
        self._lock = threading.Lock()
        self._published: deque[Any] = deque(maxlen=_MOST_KEPT)
        self._hearers: list[queue.SimpleQueue[Any]] = []
        self._listener = Listener(self.address.name, "AF_UNIX", backlog=64, authkey=self.address.secret)
        threading.Thread(target=self._accept, daemon=True).start()

    def agreed(self, value: Any, place: Place) -> Any:
        """Publish the reading `value`; return it."""
        is_watched = self._is_watched()
        if is_watched or threading.current_thread() is not threading.main_thread():
            self._publish((self._readings.next(place), value, is_watched))
        return value

    def _publish(self, reading: tuple[Place, Any, bool]) -> None:
        with self._lock:
            if reading[-1]:
                self._published.append(reading)
            else:
                self._published.clear()
            for hearer in self._hearers:
                hearer.put(reading)

    def _accept(self) -> None:
        """Send each process that connects all readings so far, and then each new one."""
        while True:
            try:
                line = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):
                continue
            hearer: queue.SimpleQueue[Any] = queue.SimpleQueue()
            with self._lock:
                for reading in self._published:
                    hearer.put(reading)
                self._hearers.append(hearer)
            threading.Thread(target=self._send, args=(line, hearer), daemon=True).start()

    def _send(self, line: Connection, hearer: "queue.SimpleQueue[Any]") -> None:
        with contextlib.suppress(OSError), line:
            while True:
                line.send(hearer.get())
        with self._lock:
            self._hearers.remove(hearer)


class ClockHearer:
    """The end of another process. Where no reading of a thread has come in time, those of its name wait no more."""

    def __init__(self, line: Connection, *, is_witness: bool) -> None:
        self._line = line
        self._is_witness = is_witness
        self._readings = _Readings()
        self._heard: dict[Place, Any] = {}
        self._news = threading.Condition()
        self._hung_up = False
        self._is_watched = True  # rank 0, as far as it has said
        self._impatient: set[str] = set()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                key, value, is_watched = self._line.recv()
                with self._news:
                    self._is_watched = is_watched
                    self._heard[key] = value
                    if len(self._heard) > _MOST_KEPT:
                        del self._heard[next(iter(self._heard))]
                    self._news.notify_all()
        with self._news:
            self._hung_up = True
            self._news.notify_all()

    def agreed(self, value: Any, place: Place) -> Any:
        """Return rank 0's reading, or `value` where none comes."""
        key = self._readings.next(place)
        with self._news:
            if not self._news.wait_for(lambda: key in self._heard or self._hung_up, timeout=self._patience(key[0])):
                self._impatient.add(key[0])
            return self._heard.pop(key, value)

    def _patience(self, name: str) -> float:
        """Return how many seconds threads of this `name` wait for a reading."""
        if name in self._impatient:
            return 0.0
        if self._is_witness:
            return WITNESS_PATIENCE_S
        return WATCHED_PATIENCE_S if self._is_watched else _PATIENCE_S


def hear(address: Address, *, is_witness: bool) -> ClockHearer | None:
    """Return the line to rank 0 at `address`; None on another host, where every thread reads its own clocks."""
    try:
        return ClockHearer(Client(address.name, "AF_UNIX", authkey=address.secret), is_witness=is_witness)
    except (OSError, EOFError):
        return None
