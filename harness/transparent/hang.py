"""Notice a collective that never ends, and say which rank is missing and what it never reached."""

import contextlib
import itertools
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harness.base.files import write_atomic
from harness.comm.world import World

if TYPE_CHECKING:
    from harness.comm.reduction import Reduction


END = "end of the script"
"""What the last exchange of a run is called."""
_SHOWN = 6  # calls of a rank's ring on the page
_FRAMES = 4  # of its Python stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One exchange between ranks. `channel` and `number` tell which; times in seconds on the rank's own clock.

    `exit` is 0 while it goes on.
    """

    channel: str
    number: int
    label: str
    bytes: int
    entry: float
    exit: float

    @property
    def open(self) -> bool:
        """Whether the rank is still inside."""
        return self.exit == 0

    def __str__(self) -> str:
        size = f", {self.bytes:,} bytes" if self.bytes else ""
        return f"{self.label} (call {self.number} of {self.channel}{size})"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankState:
    """What one rank wrote down: its last exchanges, oldest first, and its Python stack, innermost last."""

    rank: int
    host: str
    pid: int
    now: float
    calls: tuple[Call, ...]
    stack: tuple[str, ...]

    @property
    def waiting(self) -> Call | None:
        """The exchange that the rank is in."""
        return next((call for call in reversed(self.calls) if call.open), None)

    def to_json(self) -> bytes:
        """Return this as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: str) -> "RankState":
        """Read what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


def describe(states: Sequence[RankState | None], reason: str) -> str:
    """Return one page: who is missing where, then every rank's last exchanges and stack. None: a rank is silent."""
    lines = [reason, *_verdicts(states), ""]
    for rank, state in enumerate(states):
        if state is None:
            lines.append(f"rank {rank} wrote nothing: its process is gone, or blocked outside of Python")
            continue
        lines.append(f"rank {rank} on {state.host}, process {state.pid}:")
        for call in state.calls[-_SHOWN:]:
            ended = "waiting" if call.open else f"{(call.exit - call.entry) * 1e3:.3f} ms"
            lines.append(f"  {state.now - call.entry:9.3f} s ago  {ended:>12}  {call}")
        lines += [f"  {line}" for frame in state.stack[-_FRAMES:] for line in frame.splitlines()]
    return "\n".join(lines)


def _verdicts(states: Sequence[RankState | None]) -> list[str]:
    """Return a sentence for every rank that is not where the longest waiting one waits."""
    waiting = [(state, state.waiting) for state in states if state is not None and state.waiting is not None]
    found = [(state, call) for state, call in waiting if call is not None]
    if not found:
        return ["no rank waits any longer"]
    # A rank that waits at the end of its script has left out what the others still wait in, however long each does.
    first, awaited = max(found, key=lambda pair: (pair[1].label != END, pair[0].now - pair[1].entry))
    there = [state.rank for state, call in found if _same(call, awaited)]
    verb = "waits" if len(there) == 1 else "wait"
    lines = [f"rank {', '.join(map(str, there))} {verb} in {awaited}"]
    for rank, state in enumerate(states):
        if rank in there:
            continue
        where = _whereabouts(state)
        lines.append(f"rank {rank} is missing: it never reached it; {where}")
    if len(lines) == 1:
        lines.append(f"all ranks are there: the network or the MPI library hangs, first seen by rank {first.rank}")
    return lines


def _same(call: Call, other: Call) -> bool:
    return (call.channel, call.number, call.label) == (other.channel, other.number, other.label)


def _whereabouts(state: RankState | None) -> str:
    if state is None:
        return "it does not answer"
    if state.waiting is not None:
        return f"it waits in {state.waiting}"
    return f"it is in {_script_line(state.stack)}"


def _script_line(stack: Sequence[str]) -> str:
    """Return the innermost line of a stack that is neither TensorFlow's, Keras's nor ours."""
    foreign = ("site-packages", "harness/transparent", "/lib/python", "<frozen")
    for frame in reversed(stack):
        if not any(part in frame for part in foreign):
            return " ".join(frame.split())
    return " ".join(stack[-1].split()) if stack else "no Python at all"


_POLL_S = 0.25
_LONG_S = 2.0  # an exchange of more is told to the other ranks, again and again
_ANSWER_S = 5.0  # how long the other ranks have to write down where they are
_KEPT = 32
EXIT_CODE = 3


class HangWatch:
    """One rank's ring of exchanges and the thread that looks at it.

    In-graph calls are kept by the reductions themselves, outside of Python. Ranks find each other through files in
    `folder`, which all hosts must see: the network may be what hangs.
    """

    def __init__(self, world: World, folder: Path, timeout_s: float) -> None:
        self._world = world
        self._folder = folder
        self._timeout_s = timeout_s
        self._reductions: list[Reduction] = []
        self._labels: dict[int, str] = {}
        self._calls: deque[list[Any]] = deque(maxlen=_KEPT)
        self._numbers = itertools.count(1)
        self._told = ""
        self._seen: dict[int, str] = {}
        self._ended = threading.Event()
        self._screen = os.dup(2)  # standard error may be sent to a log later
        self._main = threading.main_thread().ident

    def start(self) -> None:
        """Clear what an earlier run has left and start to watch; all ranks together."""
        if self._world.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._folder.glob("*"):
                path.unlink()
        self._world.comm.Barrier()
        if self._timeout_s:
            threading.Thread(target=self._look, name="harness-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._ended.set()

    def opened(self, reduction: "Reduction") -> None:
        """Take note of a reduction whose calls are to be watched."""
        self._reductions.append(reduction)

    def named(self, size: int, label: str) -> None:
        """Take note that in-graph calls of `size` bytes are called `label`."""
        self._labels[size] = label

    @contextlib.contextmanager
    def inside(self, label: str, size: int) -> Iterator[None]:
        """Watch one exchange that is made from Python."""
        call = [next(self._numbers), label, size, time.perf_counter(), 0.0]
        self._calls.append(call)
        yield
        call[4] = time.perf_counter()

    def _look(self) -> None:
        request = self._folder / "request"
        while not self._ended.wait(_POLL_S):
            if request.exists():
                self._answer()
                time.sleep(2 * _ANSWER_S)  # rank by rank they are ended; this is for when nobody does it
                os._exit(EXIT_CODE)
            now = time.perf_counter()
            longest = min((call for call in self._recent() if call.open), key=lambda call: call.entry, default=None)
            waited = 0.0 if longest is None else now - longest.entry
            if waited > self._timeout_s:
                self._report(request, f"no progress for {self._timeout_s:g} s")
            self._tell(longest, waited)
            if self._world.rank == 0 and waited > _LONG_S and self._apart():
                self._report(request, "no progress: the ranks wait in different exchanges")

    def _tell(self, call: Call | None, waited: float) -> None:
        """Let the other ranks know of an exchange that this one has been in for long, and that it still is."""
        file = self._folder / f"long-{self._world.rank}"
        text = f"{call}\n{waited // _LONG_S}" if waited > _LONG_S else ""
        if text == self._told:
            return
        if text:
            write_atomic(file, text)
        else:
            file.unlink(missing_ok=True)
        self._told = text

    def _apart(self) -> bool:
        """Tell whether no exchange can end any more: every rank is in one for long, and they are not the same.

        Every rank must have told so twice, so that all were inside at one time.
        """
        found = {}
        for rank in range(self._world.size):
            with contextlib.suppress(FileNotFoundError):
                found[rank] = (self._folder / f"long-{rank}").read_text()
        calls = {rank: text.partition("\n")[0] for rank, text in found.items()}
        if len(found) < self._world.size or len(set(calls.values())) == 1:
            self._seen = {}
            return False
        if calls != {rank: text.partition("\n")[0] for rank, text in self._seen.items()}:
            self._seen = found
        return all(text != self._seen[rank] for rank, text in found.items())

    def _report(self, request: Path, reason: str) -> None:
        """Ask all ranks where they are, write the page and end the run; the first rank to get here does it."""
        try:
            request.touch(exist_ok=False)
        except FileExistsError:
            return
        self._answer()
        deadline = time.monotonic() + _ANSWER_S
        files = [self._folder / f"rank-{rank}.json" for rank in range(self._world.size)]
        while time.monotonic() < deadline and not all(path.exists() for path in files):
            time.sleep(0.1)
        states = [RankState.from_json(path.read_text()) if path.exists() else None for path in files]
        page = describe(states, reason)
        write_atomic(self._folder / "report.txt", page)
        os.write(self._screen, f"harness: {page}\nwritten to {self._folder / 'report.txt'}\n".encode())
        os._exit(EXIT_CODE)

    def _answer(self) -> None:
        """Write down this rank's calls and where its Python is."""
        frame = sys._current_frames().get(self._main or 0)
        stack = tuple(line.rstrip() for line in traceback.format_stack(frame)) if frame else ()
        state = RankState(rank=self._world.rank, host=os.uname().nodename, pid=os.getpid(), now=time.perf_counter(),
                          calls=self._recent(), stack=stack)  # fmt: skip
        write_atomic(self._folder / f"rank-{self._world.rank}.json", state.to_json())

    def _recent(self) -> tuple[Call, ...]:
        calls = [Call(channel="Python", number=n, label=label, bytes=size, entry=entry, exit=left)
                 for n, label, size, entry, left in list(self._calls)]  # fmt: skip
        for index, reduction in enumerate(self._reductions):
            for number, size, entry, left in reduction.recent():
                label = self._labels.get(int(size), "allreduce")
                calls.append(Call(channel=f"graph {index}", number=int(number), label=label, bytes=int(size),
                                  entry=float(entry), exit=float(left)))  # fmt: skip
        return tuple(sorted(calls, key=lambda call: call.entry))
