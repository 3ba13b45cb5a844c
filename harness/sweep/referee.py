"""The referee of a turn block: it starts the launches, gives them turns, and notes what each turn took.

One set of ranks has the turn, the others wait and use no core (`harness.base.turns`). A round gives every set one turn,
in an order drawn by chance; what the machine does within those tenths of a second falls on all of them.
"""

import contextlib
import hmac
import math
import os
import random
import secrets
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Protocol

from harness.base import exit_codes
from harness.base.errors import UserError
from harness.base.processes import run_program
from harness.base.turns import (
    APART,
    BLOCK,
    LONGEST_LINE,
    READY,
    TRIED_ROUNDS,
    TURNS,
    Greeting,
    TurnOrder,
    TurnReport,
    keep_alive,
)
from harness.comm.gpus import visible_gpus
from harness.sweep.turn_block import TURN_TYPES, BlockEnd, LaunchSpec, Turn, TurnBlock

# The connections of a block's ranks to its referee. Anyone on the network may connect: nobody else is listened to.

_STRANGERS = 256  # that have not greeted; the oldest goes when one more comes
_PAUSE_S = 0.05  # without a descriptor for one more connection


@dataclass(kw_only=True, eq=False)
class RankConnection:
    """A connection from `host`, and that of a rank when it has sent its `greeting`.

    `lines` are what it has said since it was last told something, `rest` is the beginning of a line. `set_number` is
    the set whose rank it is, -1 before.
    """

    socket: socket.socket
    host: str
    greeting: Greeting | None = None
    set_number: int = -1
    rest: bytes = b""
    lines: list[str] = field(default_factory=list)

    @property
    def cores(self) -> str:
        """The cores that the rank may use."""
        return self.greeting.cores if self.greeting else ""

    @property
    def is_open(self) -> bool:
        """Whether it has been closed on neither side."""
        return self.socket.fileno() >= 0

    def tell(self, line: str) -> None:
        """Send a line; a rank that has died is not told: its launcher ends the set."""
        with contextlib.suppress(OSError):
            self.socket.sendall(f"{line}\n".encode())


class RankConnections:
    """The server at `host` for the ranks of `sets` sets, each of which has a password of its own.

    What a connection does ends that connection at worst: one that sends no greeting with a password, a line that is
    too long or not understood, or that breaks off, is closed.
    """

    def __init__(self, host: str, sets: int) -> None:
        self._host = host
        self._passwords = [secrets.token_hex(16) for _ in range(sets)]
        self._server = socket.create_server((host, 0), backlog=4096)
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._strangers: dict[RankConnection, None] = {}  # the oldest first

    def address(self, set_number: int) -> str:
        """Return the address, port and password of the ranks of a set."""
        return f"{self._host}:{self._server.getsockname()[1]}:{self._passwords[set_number]}"

    def listen(self, patience_s: float) -> list[RankConnection]:
        """Wait for what ranks say, and return those that have said something."""
        speakers = []
        for key, _ in self._selector.select(timeout=patience_s):
            if key.fileobj is self._server:
                self._accept()
            elif key.data.is_open and self._take_in(key.data):
                speakers.append(key.data)
        return speakers

    def close(self, rank: RankConnection) -> None:
        """Close a connection; a rank that waits ends with it."""
        self._strangers.pop(rank, None)
        if rank.is_open:
            self._selector.unregister(rank.socket)
            rank.socket.close()

    def close_all(self) -> None:
        """Close the server and what is left."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self.close(key.data)
        self._server.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, address = self._server.accept()
        except (BlockingIOError, ConnectionError):  # it has gone already
            return
        except OSError:  # there is no descriptor left, or no memory
            if self._strangers:
                self.close(next(iter(self._strangers)))
            time.sleep(_PAUSE_S)
            return
        with contextlib.suppress(OSError):  # it has been reset: the first read tells
            keep_alive(connection)
        rank = RankConnection(socket=connection, host=address[0])
        self._selector.register(connection, selectors.EVENT_READ, rank)
        self._strangers[rank] = None
        if len(self._strangers) > _STRANGERS:
            self.close(next(iter(self._strangers)))

    def _take_in(self, rank: RankConnection) -> bool:
        """Read what was sent; return whether a rank has said something."""
        content = b""
        with contextlib.suppress(OSError):
            content = rank.socket.recv(LONGEST_LINE)
        *lines, rank.rest = (rank.rest + content).split(b"\n")
        too_long = max(map(len, (*lines, rank.rest))) > LONGEST_LINE
        if not content or too_long or not all(self._understands(rank, line) for line in lines):
            self.close(rank)
            return False
        return bool(lines)

    def _understands(self, rank: RankConnection, sent: bytes) -> bool:
        """Take a line, the first as a greeting; return False where it is none of a rank's."""
        if rank.greeting is None:
            return self._admit(rank, sent)
        line = sent.decode(errors="replace")
        if line != READY and TurnReport.parse(line) is None:
            return False
        rank.lines.append(line)
        return True

    def _admit(self, rank: RankConnection, sent: bytes) -> bool:
        """Take the first line of a connection; nothing of it is read before its password is known."""
        word = sent.split(b" ", 2)[1:2]
        matches = [hmac.compare_digest(word[0], known.encode()) for known in self._passwords] if word else []
        greeting = Greeting.parse(sent.decode(errors="replace")) if any(matches) else None
        if greeting is None:
            return False
        rank.greeting = greeting
        rank.set_number = matches.index(True)
        del self._strangers[rank]
        return True


# Whether devices hold the ranks of several launches at once: what is in use on each, before the first and with it.

_QUERY = ("nvidia-smi", "--query-gpu=uuid,memory.used,memory.total", "--format=csv,noheader,nounits")
_LIMIT_S = 60
_MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """The bytes in use on a device, and those that it has."""

    used: int
    total: int


class Device(Protocol):
    """Devices of this host that several launches share."""

    def memory(self) -> Sequence[MemoryUse]:
        """Return what is in use now on each, in the same order every time."""


class Gpus:
    """The GPUs that this process may use. Of MIG instances the whole GPU's memory is known: they count as one."""

    def memory(self) -> Sequence[MemoryUse]:
        """Return each GPU's memory.

        Raises:
            UserError: the driver does not answer.
        """
        buses = {gpu.uuid for gpu in visible_gpus()}
        answer = run_program(_QUERY, limit_s=_LIMIT_S)
        if answer.code != 0:
            raise UserError(f"the driver does not say how much memory its GPUs have ({answer.last_error})")
        return parse_memory(answer.out, buses)


def parse_memory(text: str, uuids: set[str]) -> tuple[MemoryUse, ...]:
    """Return the memory of the GPUs with these `uuids` in nvidia-smi's answer, of all where it has none of them."""
    uses: dict[str, MemoryUse] = {}
    for line in filter(str.strip, text.splitlines()):
        uuid, used, total = map(str.strip, line.split(","))
        uses[uuid] = MemoryUse(used=int(used) * _MIB, total=int(total) * _MIB)
    chosen = tuple(use for uuid, use in uses.items() if uuid in uuids)
    return chosen or tuple(uses.values())


def holds(before: Sequence[MemoryUse], with_one: Sequence[MemoryUse], launches: int) -> bool:
    """Return whether each device holds `launches` as large as the first, which has taken what is between the two.

    The first has the fewest ranks and may be on one device alone: the most that it took there is taken for all.
    """
    taken = max((after.used - start.used for start, after in zip(before, with_one, strict=True)), default=0)
    return all(start.used + launches * taken <= start.total for start in before)


TURN_S = 0.05
_FEWEST = 20  # timed steps of a turn; 3 where a step takes longer than `_LONG_S`
_LONG_S = 0.02
_FIRST_STEPS = 4  # of a turn before any was timed
_GRACE_S = 10.0
_CPUS = "/sys/devices/system/cpu"
_MOST_PLACES = 16  # or a launch would not come to each of them often enough


@dataclass(kw_only=True)
class RankSet:
    """The ranks of a launch that was started. `waits_since` is when its last turn ended (monotonic s).

    `size` is how many they are, 0 until the first has said so; `step_s` are the seconds of a step in each of its turns.
    """

    number: int
    spec: LaunchSpec
    process: "subprocess.Popen[bytes]"
    ranks: dict[int, RankConnection] = field(default_factory=dict)
    size: int = 0
    step_s: list[float] = field(default_factory=list)
    waits_since: float = 0.0
    trained: bool = False
    paused_s: float = 0.0
    turns: int = 0

    @property
    def over(self) -> bool:
        """Whether its launcher has ended."""
        return self.process.poll() is not None

    @property
    def ready(self) -> bool:
        """Whether all its ranks wait for a turn."""
        return bool(self.size) and len(self.ranks) == self.size and all(rank.lines for rank in self.ranks.values())

    def reports(self) -> list[TurnReport]:
        """Return what its ranks tell of the turn that they have made, by rank."""
        reports = [TurnReport.parse(rank.lines[-1]) for _, rank in sorted(self.ranks.items())]
        return [report for report in reports if report is not None]


class Referee:
    """Starts the launches of `block`, gives them turns until the last has ended, and keeps the turns.

    `turns`: those of counted rounds. Launches that end, or fail, leave the others to go on. Ranks connect to `host`,
    this host's address, and each set by a word of its own, which nobody else on a network knows. Of a `device` it is
    found out whether it holds all sets: they start one after the other.
    """

    def __init__(
        self,
        block: TurnBlock,
        *,
        pass_fds: tuple[int, ...] = (),
        host: str = "127.0.0.1",
        device: Device | None = None,
    ) -> None:
        self._device = device
        self._random = random.Random(block.name)
        self._connections = RankConnections(host, len(block.launches))
        self.turns: list[Turn] = []
        self._places: list[str] = []
        self._block = block
        self._pass_fds = pass_fds
        self._sets: list[RankSet] = []

    def run(self) -> dict[str, int]:
        """Return the exit code of every launch, by name: for a signal 128 and its number, for the block's time 0."""
        if not self._start_all():
            return self._run_apart()
        connections = [rank for rank_set in self._sets for rank in rank_set.ranks.values()]
        self._places = _places(connections)
        begun = math.inf
        number = 0
        while len(going := self._going()) > 1:
            if self._block.seconds and time.monotonic() > begun + self._block.seconds:
                break
            if number == TRIED_ROUNDS:
                begun = time.monotonic()
            turns = self._round(going, number, begun)
            if number >= TRIED_ROUNDS:
                self.turns += turns
            number += 1
        if self._block.seconds:
            return self._end(self._going())
        for rank_set in self._going():  # one at most: it trains on alone
            self._make_turn(rank_set, 0)
        for rank_set in self._sets:
            self._order(rank_set, 0)
        return {rank_set.spec.name: exit_codes.of_return_code(rank_set.process.wait()) for rank_set in self._sets}

    def _start_all(self) -> bool:
        """Start all sets and wait until they are ready; tell whether the device holds them all."""
        before = self._device.memory() if self._device else ()
        for number, spec in enumerate(self._block.launches):
            words = {TURNS: self._connections.address(number), BLOCK: self._block.name}
            rank_set = RankSet(number=number, spec=spec, process=self._start(spec, words))
            self._sets.append(rank_set)
            if self._device is None:
                continue
            self._wait_for([rank_set])
            if number and rank_set.over:  # perhaps there was no memory left: alone it will show
                return False
            if not number and not holds(before, self._device.memory(), len(self._block.launches)):
                return False
        self._wait_for(self._sets)
        return True

    def _run_apart(self) -> dict[str, int]:
        """Start the launches anew, one after the other and without turns; return as `run`."""
        _kill(self._sets)
        count = len(self._block.launches)
        if self._block.seconds:
            raise UserError(f"the GPUs' memory does not hold {count} launches at once: use a smaller BATCH_PER_RANK")
        codes = {}
        for spec in self._block.launches:
            self._sets = [RankSet(number=0, spec=spec, process=self._start(spec, {APART: str(count)}))]
            codes[spec.name] = exit_codes.of_return_code(self._sets[0].process.wait())
        return codes

    def stop(self) -> None:
        """End all that was started and is left: by SIGTERM, 10 s later by SIGKILL."""
        _kill(self._sets)
        self._connections.close_all()

    def _start(self, spec: LaunchSpec, words: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        environment = dict(os.environ)
        for name, value in {**spec.changes, **words}.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        with Path(spec.log).open("wb") as log:
            return subprocess.Popen(
                spec.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=self._pass_fds,
            )

    def _going(self) -> list[RankSet]:
        """Return the sets that still train."""
        return [rank_set for rank_set in self._sets if not rank_set.over and not rank_set.trained]

    def _round(self, going: list[RankSet], number: int, begun: float) -> list[Turn]:
        """Give each of `going` one turn and return those that were timed; `number` counts from the first try."""
        steps = self._steps(going)
        turns: list[Turn] = []
        for place, rank_set in enumerate(self._drawn_order(going)):
            reports = self._make_turn(rank_set, steps[rank_set.number], max(0, number - TRIED_ROUNDS))
            timed_steps = min((report.timed.steps for report in reports), default=0)
            if not timed_steps:
                continue
            seconds = max(report.timed.seconds for report in reports)
            rank_set.step_s.append(seconds / timed_steps)
            turns.append(
                Turn(
                    round=number - TRIED_ROUNDS,
                    launch=rank_set.spec.name,
                    place=place,
                    steps=timed_steps,
                    seconds=seconds,
                    cores=min(report.timed.cores_had for report in reports),
                    at_s=time.monotonic() - begun,
                    core_ns=max(report.core_ns for report in reports),
                    bound=";".join(report.cores for report in reports),
                )
            )
        return turns

    def _make_turn(self, rank_set: RankSet, steps: int, round_number: int = 0) -> list[TurnReport]:
        """Give a set the turn, for a number of timed steps or to its end (0), and wait until it gives it back.

        A single rank makes its turn of a round on the cores of another rank of the block, one after the other. Return
        what the ranks tell of it, by rank; nothing where the set has ended.
        """
        self._order(rank_set, steps, round_number)
        if steps:
            self._wait_for([rank_set])
        self._listen_until(lambda: rank_set.over or rank_set.ready)
        if rank_set.over:
            self._close(rank_set)
            return []
        reports = rank_set.reports()
        rank_set.trained = any(report.last for report in reports)
        return reports

    def _order(self, rank_set: RankSet, steps: int, round_number: int = 0) -> None:
        """Tell the ranks of a set to make a turn of `steps` steps."""
        now = time.monotonic()
        rank_set.paused_s += now - (rank_set.waits_since or now)
        rank_set.turns += 1
        for rank in rank_set.ranks.values():
            rank.lines.clear()
            cores = self._cores_of_turn(rank_set, rank, steps, round_number)
            order = TurnOrder(turn=rank_set.turns, steps=steps, paused_s=rank_set.paused_s, cores=cores)
            rank.tell(order.line())

    def _cores_of_turn(self, rank_set: RankSet, rank: RankConnection, steps: int, round_number: int) -> str:
        """Return the cores of a rank in a round: its own, those of each place in turn for a single rank."""
        if rank_set.size != 1 or not steps or rank.cores not in self._places:
            return rank.cores
        home = self._places.index(rank.cores)
        return self._places[(home + round_number) % len(self._places)]

    def _drawn_order(self, going: list[RankSet]) -> list[RankSet]:
        """Return the order of a round, by chance; what is `alike` and of equally many ranks has neighbouring turns."""
        kinds = {rank_set.number: rank_set.size if self._block.alike else rank_set.number for rank_set in going}
        draws = {kind: self._random.random() for kind in kinds.values()}
        return sorted(going, key=lambda rank_set: (draws[kinds[rank_set.number]], self._random.random()))

    def _steps(self, going: list[RankSet]) -> dict[int, int]:
        """Return how many steps each set makes in its next turn, by its number."""
        steps: dict[int, int] = {}
        for rank_set in going:
            steps[rank_set.number] = _FIRST_STEPS
            if rank_set.step_s:
                step_s = median(rank_set.step_s[: TRIED_ROUNDS + 1])
                steps[rank_set.number] = max(round(TURN_S / step_s), 3 if step_s > _LONG_S else _FEWEST)
        if not self._block.alike:
            return steps
        fewest: dict[int, int] = {}  # by the number of ranks
        for rank_set in going:
            fewest[rank_set.size] = min(steps[rank_set.number], fewest.get(rank_set.size, steps[rank_set.number]))
        return {rank_set.number: fewest[rank_set.size] for rank_set in going}

    def _end(self, going: list[RankSet]) -> dict[str, int]:
        """End those that still train: a rank that waits ends as soon as its connection does."""
        codes = {rank_set.spec.name: exit_codes.of_return_code(rank_set.process.poll() or 0) for rank_set in self._sets}
        for rank_set in going:
            self._close(rank_set)
        _wait_until_over(going)
        return codes

    def _wait_for(self, sets: Sequence[RankSet]) -> None:
        """Wait until each of `sets` has given its turn back or ended; what exceeds the block's limit is ended."""
        deadline = time.monotonic() + (self._block.limit_s or math.inf)

        def settled() -> bool:
            return all(rank_set.ready or rank_set.over for rank_set in sets) or time.monotonic() > deadline

        self._listen_until(settled)
        _kill([rank_set for rank_set in sets if not rank_set.ready])

    def _listen_until(self, done: Callable[[], bool]) -> None:
        """Take in what ranks say until `done`; processes that end say nothing, and are looked at."""
        while not done():
            for rank in self._connections.listen(0.2):
                self._take_in(rank)

    def _take_in(self, rank: RankConnection) -> None:
        """Take note of a rank that has greeted, or has given its turn back."""
        greeting = rank.greeting
        assert greeting is not None
        rank_set = self._sets[rank.set_number]
        rank_set.ranks[greeting.rank] = rank
        rank_set.size = greeting.ranks
        if rank_set.ready:
            rank_set.waits_since = time.monotonic()

    def _close(self, rank_set: RankSet) -> None:
        for rank in rank_set.ranks.values():
            self._connections.close(rank)


def run_block(
    block: TurnBlock, *, pass_fds: tuple[int, ...] = (), host: str = "127.0.0.1", device: Device | None = None
) -> BlockEnd:
    """Run `block` to its end. Whatever ends this process in an orderly way, an exception too, ends its launches.

    Its ranks reach this host by the address `host`. `device` is what its launches share, its GPUs where it says so.

    Raises:
        UserError: GPUs do not hold launches that have no end of their own, or the driver does not answer.
    """
    device = device or (Gpus() if block.on_gpus else None)
    referee = Referee(block, pass_fds=pass_fds, host=host, device=device)
    try:
        codes = referee.run()
    finally:
        referee.stop()
    import pandas as pd

    turns = pd.DataFrame(list(map(asdict, referee.turns)), columns=list(TURN_TYPES))
    return BlockEnd(codes=codes, turns=turns.astype(TURN_TYPES))


def _places(ranks: Sequence[RankConnection]) -> list[str]:
    """Return the cores of the `ranks` of a block where a single one may train in its turns: those of each.

    None where they are many, not of one memory or of several hosts: what is near one would be far from the other.
    """
    places = sorted({rank.cores for rank in ranks})
    cores = [core for place in places for core in place.split(",")]
    memories = {node.name for core in cores for node in Path(f"{_CPUS}/cpu{core}").glob("node*")}
    hosts = {rank.host for rank in ranks}
    alike = len({place.count(",") for place in places}) == 1
    return places if 1 < len(places) <= _MOST_PLACES and len(memories) < 2 and len(hosts) == 1 and alike else []


def _kill(sets: Sequence[RankSet]) -> None:
    """End those of `sets` that are not over: by SIGTERM, 10 s later by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for rank_set in sets:
            if not rank_set.over:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank_set.process.pid, number)
        _wait_until_over(sets)


def _wait_until_over(sets: Sequence[RankSet]) -> None:
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and not all(rank_set.over for rank_set in sets):
        time.sleep(0.05)
