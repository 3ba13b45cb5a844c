"""Notice a collective that never ends, and say which rank is missing and what it never reached."""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec
import psutil

from harness.base.errors import UserError
from harness.base.exit_codes import HANG, PARTED
from harness.base.files import write_atomic
from harness.base.removal import remove_empty_folder, remove_file
from harness.base.turns import clock
from harness.comm.world import World

if TYPE_CHECKING:
    from mpi4py import MPI

    from harness.comm.reduction import Reduction

# One page on a run that hangs: which rank is missing where, and every rank's last exchanges and stack.

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
    """What one rank wrote down: its last exchanges, oldest first, and its Python stack, innermost last.

    `place`: where it is in the user's script, in words; empty where there is none.
    """

    rank: int
    host: str
    pid: int
    now: float
    calls: tuple[Call, ...]
    stack: tuple[str, ...]
    place: str = ""

    @property
    def waiting(self) -> Call | None:
        """The exchange that the rank is in."""
        return next((call for call in reversed(self.calls) if call.open), None)


def describe_hang(states: Sequence[RankState | None], reason: str) -> str:
    """Return one page: who is missing where, then every rank's last exchanges and stack; None for a silent rank."""
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


def describe_parting(states: Sequence[RankState | None]) -> str:
    """Return one sentence on ranks that wait for each other at different places of a user's script."""
    places = [f"rank {state.rank}: {state.place}" for state in states if state is not None and state.place]
    return (
        f"the ranks have gone different ways in the script ({'; '.join(places)}): what decides how long a loop goes "
        "on, or whether a step is made, must be the same on all ranks, as a thread, a timer or another process is not: "
        "have it follow from steps, losses or clocks, or run it with -n 1"
    )


def _verdicts(states: Sequence[RankState | None]) -> list[str]:
    """Return a sentence for every rank that is not where the longest waiting one waits."""
    waiting = [(state, state.waiting) for state in states if state is not None and state.waiting is not None]
    calls = [(state, call) for state, call in waiting if call is not None]
    if not calls:
        return ["no rank is waiting any more"]
    # A rank that waits at the end of its script has left out what the others still wait in, however long each does.
    first, awaited = max(calls, key=lambda pair: (pair[1].label != END, pair[0].now - pair[1].entry))
    which = (awaited.channel, awaited.number, awaited.label)
    present = [state.rank for state, call in calls if (call.channel, call.number, call.label) == which]
    verb = "waits" if len(present) == 1 else "wait"
    lines = [f"rank {', '.join(map(str, present))} {verb} in {awaited}"]
    for rank, state in enumerate(states):
        if rank in present:
            continue
        where = "it does not answer"
        if state is not None:
            where = f"it waits in {state.waiting}" if state.waiting else f"it is in {_script_line(state.stack)}"
        lines.append(f"rank {rank} is missing: it never reached that call; {where}")
    if len(lines) == 1:
        lines.append(f"all ranks are there: the network or the MPI library hangs, first seen by rank {first.rank}")
    return lines


def _script_line(stack: Sequence[str]) -> str:
    """Return the innermost line of a stack that is neither TensorFlow's, Keras's nor ours."""
    foreign = ("site-packages", "harness/transparent", "/lib/python", "<frozen")
    for frame in reversed(stack):
        if not any(part in frame for part in foreign):
            return " ".join(frame.split())
    return " ".join(stack[-1].split()) if stack else "no Python at all"


_POLL_S = 0.25
LONG_S = 2.0  # a longer exchange is published to the other ranks, again and again
ANSWER_S = 5.0  # how long the other ranks have to write down where they are
_KEPT = 32
REQUEST = "request"  # the file by which the first rank to notice asks all the others; then they end
REPORT = "report.txt"
_ENDS = ((ANSWER_S, "TERM"), (1, "TERM"), (2, "KILL"))
_OWN_NAMES = re.compile(rf"{REQUEST}|{re.escape(REPORT)}|(long-|rank-)\d+(\.json)?")
_COLLECTIVE = frozenset({"Allreduce", "Barrier", "Bcast", "allgather", "bcast", "gather"})


class HangWatch:
    """One rank's ring of exchanges and the thread that looks at it.

    In-graph calls are kept by the reductions themselves, outside of Python. Ranks find each other through files in
    `folder`, which all hosts must see: the network may be what hangs. `script_place` returns where a frame is in a
    user's script, in words; with it, ranks that have parted are told in one sentence, and the page is in its file only.
    """

    def __init__(self, world: World, folder: Path, timeout_s: float) -> None:
        self.script_place: Callable[[Any], str] | None = None
        self._world = world
        self._folder = folder
        self._timeout_s = timeout_s
        self._reductions: list[Reduction] = []
        self._labels: dict[int, str] = {}
        self._calls: deque[list[Any]] = deque(maxlen=_KEPT)
        self._numbers = itertools.count(1)
        self._published = ""
        self._seen: dict[int, str] = {}
        self._together = False
        self._ended = threading.Event()
        self._screen = os.dup(2)  # standard error may be sent to a log later
        self._main = threading.main_thread().ident

    def start(self) -> None:
        """Clear what an earlier run has left and start to watch; all ranks together."""
        if self._world.rank == 0:
            remove_reports(self._folder)
        self._together = len(set(self._world.comm.allgather(os.uname().nodename))) == 1
        if self._timeout_s:
            threading.Thread(target=self._look, name="harness-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer, and leave no empty folder."""
        self._ended.set()
        with contextlib.suppress(OSError, UserError):
            remove_file(self._folder / f"long-{self._world.rank}")
        remove_empty_folder(self._folder)
        remove_empty_folder(self._folder.parent)

    def opened(self, reduction: "Reduction") -> None:
        """Take note of a reduction whose calls are to be watched."""
        self._reductions.append(reduction)

    def named(self, size: int, label: str) -> None:
        """Take note that in-graph calls of `size` bytes are called `label`."""
        self._labels[size] = label

    @contextlib.contextmanager
    def inside(self, label: str, size: int) -> Iterator[None]:
        """Watch one exchange that is made from Python."""
        call = [next(self._numbers), label, size, clock(), 0.0]
        self._calls.append(call)
        try:
            yield
        finally:
            call[4] = clock()

    def watched(self, comm: "MPI.Intracomm") -> "MPI.Intracomm":
        """Return `comm` with every collective call from Python watched."""
        return cast("MPI.Intracomm", _WatchedCommunicator(comm, self))

    def _look(self) -> None:
        """Watch until `stop`; a file that cannot be read or written keeps no hang from being noticed."""
        while not self._ended.wait(_POLL_S):
            if is_asked(self._folder):
                self._answer()
                end_late(self._folder, apart=not self._together)
            now = clock()
            longest = min((call for call in self._recent() if call.open), key=lambda call: call.entry, default=None)
            waited = 0.0 if longest is None else now - longest.entry
            if waited > self._timeout_s:
                self._report(f"no progress for {self._timeout_s:g} s")
            self._publish(longest, waited)
            if self._together and self._world.rank == 0 and waited > LONG_S and self._stuck_apart():
                self._report("no progress: the ranks wait in different exchanges", apart=True)

    def _publish(self, call: Call | None, waited: float) -> None:
        """Let the other ranks know of an exchange that this one has been in for long, and that it still is."""
        file = self._folder / f"long-{self._world.rank}"
        text = f"{call}\n{waited // LONG_S}" if waited > LONG_S else ""
        if text == self._published:
            return
        if text:
            _write(file, text)
        else:
            with contextlib.suppress(OSError, UserError):
                remove_file(file)
        self._published = text

    def _stuck_apart(self) -> bool:
        """Tell whether no exchange can end any more: every rank has been in one for long, and they are not the same.

        Every rank must have published so twice, so that all were inside at one time. Between hosts it proves nothing:
        where the network pauses one rank may have left what another still waits in.
        """
        texts = {}
        for rank in range(self._world.size):
            with contextlib.suppress(OSError):
                texts[rank] = (self._folder / f"long-{rank}").read_text()
        calls = {rank: text.partition("\n")[0] for rank, text in texts.items()}
        if len(texts) < self._world.size or len(set(calls.values())) == 1:
            self._seen = {}
            return False
        if calls != {rank: text.partition("\n")[0] for rank, text in self._seen.items()}:
            self._seen = texts
        return all(text != self._seen[rank] for rank, text in texts.items())

    def _report(self, reason: str, *, apart: bool = False) -> None:
        """Ask all ranks where they are, write the page and end the run; the first rank to get here does it.

        `apart`: they wait in different exchanges.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / REQUEST).touch(exist_ok=False)
        except OSError as error:
            if is_asked(self._folder):
                return
            # The others' own patience ends too.
            reason += f"; they could not be asked where they are: {error.strerror}"
        self._answer()
        deadline = time.monotonic() + ANSWER_S
        states = self._states()
        while time.monotonic() < deadline and None in states:
            time.sleep(0.1)
            states = self._states()
        page = describe_hang(states, reason)
        _write(self._folder / REPORT, page)
        code = HANG
        text = f"{page}\nwritten to {self._folder / REPORT}"
        if apart and self.script_place is not None:
            code = PARTED
            text = describe_parting(states)
        with contextlib.suppress(OSError):
            os.write(self._screen, f"harness: {text}\n".encode(errors="backslashreplace"))
        if not self._together:
            end_launcher_later()
        os._exit(code)

    def _states(self) -> list[RankState | None]:
        """Return what every rank has written down of itself, None where that cannot be read."""
        states: list[RankState | None] = []
        for rank in range(self._world.size):
            try:
                states.append(msgspec.json.decode((self._folder / f"rank-{rank}.json").read_bytes(), type=RankState))
            except (OSError, msgspec.DecodeError):
                states.append(None)
        return states

    def _answer(self) -> None:
        """Write down this rank's calls and where its Python is."""
        frame = sys._current_frames().get(self._main or 0)
        stack = tuple(_as_text(line.rstrip()) for line in traceback.format_stack(frame)) if frame else ()
        state = RankState(
            rank=self._world.rank,
            host=os.uname().nodename,
            pid=os.getpid(),
            now=clock(),
            calls=self._recent(),
            stack=stack,
            place="" if self.script_place is None else _as_text(self.script_place(frame)),
        )
        _write(self._folder / f"rank-{self._world.rank}.json", msgspec.json.encode(state))

    def _recent(self) -> tuple[Call, ...]:
        calls = [
            Call(channel="Python", number=n, label=label, bytes=size, entry=entry, exit=left)
            for n, label, size, entry, left in list(self._calls)
        ]
        for index, reduction in enumerate(self._reductions):
            for number, size, entry, left in reduction.recent():
                label = self._labels.get(int(size), "allreduce")
                calls.append(
                    Call(
                        channel=f"graph {index}",
                        number=int(number),
                        label=label,
                        bytes=int(size),
                        entry=float(entry),
                        exit=float(left),
                    )
                )
        return tuple(sorted(calls, key=lambda call: call.entry))


def remove_reports(folder: Path) -> None:
    """Remove what the watches of an earlier launch have written into `folder`; whatever else is there stays."""
    for path in folder.glob("*"):
        if _OWN_NAMES.fullmatch(path.name):
            with contextlib.suppress(OSError, UserError):
                remove_file(path)


def is_asked(folder: Path) -> bool:
    """Return whether a rank has asked all others through `folder` to say where they are, and to end."""
    try:
        return (folder / REQUEST).is_file()
    except OSError:  # Python ignores only that it is not there
        return False


def _write(path: Path, content: str | bytes) -> None:
    """Write where that works: a full disk or a lost file server keeps no rank from noticing that it waits."""
    with contextlib.suppress(UserError, OSError):
        write_atomic(path, content)


def _as_text(words: str) -> str:
    """Return `words` as UTF-8 can hold them: the path of a script may have bytes that are no text."""
    return words.encode(errors="backslashreplace").decode()


def end_late(folder: Path, *, apart: bool) -> NoReturn:
    """End this process after another one has written its page into `folder`; the other's end mostly ends it earlier.

    Where it does not, and ranks are on several hosts (`apart`), the network may have kept the page from the screen too.
    """
    time.sleep(2 * ANSWER_S)
    sentence = f"harness: another rank has found no progress: see {folder / REPORT}\n"
    os.write(2, sentence.encode(errors="backslashreplace"))
    if apart:
        end_launcher_later()
    os._exit(HANG)


def end_launcher_later() -> None:
    """Have Open MPI's launcher on this host ended, where it does not end by itself now that its ranks do.

    Where the network is cut it waits for the daemons of other hosts without end. It takes two signals within 5 s.
    """
    try:
        launcher = psutil.Process(os.getppid())
        program = launcher.name()
    except psutil.Error:  # it has ended
        return
    if program in ("mpirun", "prterun", "prted"):
        unless_ended = f"grep -qx {program} /proc/{launcher.pid}/comm || exit"
        ends = "; ".join(f"sleep {pause}; {unless_ended}; kill -{name} {launcher.pid}" for pause, name in _ENDS)
        with contextlib.suppress(OSError):  # no process more: the launcher ends by itself, or with its job
            subprocess.Popen(["/bin/sh", "-c", ends], start_new_session=True, stderr=subprocess.DEVNULL)


class _WatchedCommunicator:
    """A communicator whose collective calls are in the ring of a watch."""

    def __init__(self, comm: "MPI.Intracomm", watch: HangWatch) -> None:
        self._comm = comm
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._comm, name)
        if name not in _COLLECTIVE:
            return attribute

        def call(*words: Any, **named: Any) -> Any:
            with self._watch.inside(name, 0):
                return attribute(*words, **named)

        return call
