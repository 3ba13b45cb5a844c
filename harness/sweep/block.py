"""A block: launches started together on the same cores, which train in turns, so that they can be compared.

What is compared is started at once. One set of ranks has the turn, the others wait and use no core
(`harness.base.turns`). A round gives every set one turn, in an order drawn by chance; what the machine does within
those tenths of a second falls on all of them. As a program, ``python -m harness.sweep.block BLOCK`` is what a job of
several launches runs.
"""

import contextlib
import math
import os
import random
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.base.errors import RunError, UserError
from harness.base.files import write_atomic
from harness.base.processes import ONE_THREAD
from harness.base.turns import BLOCK, TURNS
from harness.schema.record import decode
from harness.sweep import warm

if TYPE_CHECKING:
    import pandas as pd

TURN_S = 0.05
_FEWEST = 20  # timed steps of a turn; 3 where a step takes longer than `_LONG_S`
_LONG_S = 0.02
_TRIES = 2  # rounds from which the number of steps in a turn is found; they are not kept
_GRACE_S = 10.0
_CPUS = "/sys/devices/system/cpu"
_PLACES = 16  # at most, or a launch would not come to each of them often enough
_WARM_S = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSet:
    """One launch of a block: the command `words` that starts its ranks, whose output goes to `log`.

    `changes` are made to the environment, None unsets. Its exit code is written to `exit_file`, if there is one. In a
    batch system the job knows its nodes, and writes the words to `words_file`, each with a NUL byte behind it.
    """

    name: str
    words: tuple[str, ...]
    log: str
    changes: Mapping[str, str | None] = field(default_factory=dict)
    exit_file: str | None = None
    words_file: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The launches of a block, and the file of its turns where it is a job's.

    Launches train to their end, or until kept rounds have lasted `seconds`: then all are ended. One that lets others
    wait for `limit_s` is ended too (0: never). Sets of equally many ranks make equally many steps in a turn where they
    are `alike`, and follow each other at once; else each makes as many as fill it.
    """

    name: str
    sets: tuple[RankSet, ...]
    rounds: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    alike: bool = True


@dataclass(kw_only=True)
class _Resident:
    """A set that was started. `ranks` are its connections, `waits_since` when its last turn ended (monotonic s)."""

    number: int
    set: RankSet
    process: "subprocess.Popen[bytes]"
    ranks: dict[int, "_Rank"] = field(default_factory=dict)
    size: int = 0
    seconds: list[float] = field(default_factory=list)
    waits_since: float = 0.0
    trained: bool = False
    paused_s: float = 0.0
    turns: int = 0

    def over(self) -> bool:
        return self.process.poll() is not None

    @property
    def ready(self) -> bool:
        return bool(self.size) and len(self.ranks) == self.size and all(rank.heard for rank in self.ranks.values())


@dataclass(kw_only=True)
class _Rank:
    """A rank's connection, its cores, and whose it is: what it has said since it was last told something."""

    socket: socket.socket
    cores: str = ""
    rest: bytes = b""
    heard: list[str] = field(default_factory=list)
    of: "_Resident | None" = None


class Referee:
    """Starts the sets of `block`, gives them turns until the last has ended, and keeps the rounds.

    `rounds`: one row for each turn, see `BlockEnd`. Sets that end, or fail, leave the others to go on. Ranks connect to
    `host`, this host's address, and each set by a word of its own, which nobody else on a network knows.
    """

    def __init__(self, block: Block, *, pass_fds: tuple[int, ...] = (), host: str = "127.0.0.1") -> None:
        self._random = random.Random(block.name)
        self._host, self._passwords = host, [secrets.token_hex(16) for _ in block.sets]
        self._server = socket.create_server((host, 0), backlog=4096)
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self.rounds: list[tuple[int, str, int, int, float, float, float, float, str]] = []
        self._places: list[str] = []
        self._block, self._pass_fds = block, pass_fds
        self._sets: list[_Resident] = []

    def _start(self) -> None:
        port = self._server.getsockname()[1]
        for number, one in enumerate(self._block.sets):
            address = f"{self._host}:{port}:{self._passwords[number]}"
            changes = {**one.changes, TURNS: address, BLOCK: self._block.name}
            environment = {**os.environ, **{name: value for name, value in changes.items() if value is not None}}
            for name in (name for name, value in changes.items() if value is None):
                environment.pop(name, None)
            with Path(one.log).open("wb") as log:
                process = subprocess.Popen(
                    one.words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                    pass_fds=self._pass_fds,
                )
            self._sets.append(_Resident(number=number, set=one, process=process))

    def run(self) -> dict[str, int]:
        """Return the exit code of every set, by name; a signal counts as 128 and its number, the block's time as 0."""
        self._start()
        self._wait_for(self._sets)
        self._places = _places([rank for one in self._sets for rank in one.ranks.values()])
        begun, number = math.inf, 0
        while len(going := [one for one in self._sets if not one.over() and not one.trained]) > 1:
            if self._block.seconds and time.monotonic() > begun + self._block.seconds:
                return self._end(going)
            if number == _TRIES:
                begun = time.monotonic()
            steps = self._steps(going, number)
            rows = []
            for place, one in enumerate(self._order(going)):
                made, seconds, cores, core_ns, bound = self._turn(one, steps[one.number], max(0, number - _TRIES))
                if made:
                    one.seconds.append(seconds / made)
                    at_s = time.monotonic() - begun
                    rows.append((number - _TRIES, one.set.name, place, made, seconds, cores, at_s, core_ns, bound))
            if number >= _TRIES:
                self.rounds += rows
            number += 1
        if self._block.seconds:
            return self._end(going)
        for one in going:  # one at most: it trains on alone
            self._turn(one, 0)
        for one in self._sets:
            self._give(one, 0)
        codes = {one.set.name: one.process.wait() for one in self._sets}
        return {name: code if code >= 0 else 128 - code for name, code in codes.items()}

    def _end(self, going: list[_Resident]) -> dict[str, int]:
        """End those that still train: a rank that waits ends as soon as its connection does."""
        codes = {one.set.name: abs(one.process.poll() or 0) for one in self._sets}
        for one in going:
            self._close(one)
        _wait_until_over(going)
        return codes

    def _wait_for(self, sets: list[_Resident]) -> None:
        """Wait until each of `sets` has given its turn back or ended; what exceeds the block's limit is ended."""
        deadline = time.monotonic() + (self._block.limit_s or float("inf"))
        self._until(lambda: all(one.ready or one.over() for one in sets) or time.monotonic() > deadline)
        for one in sets:
            if not one.ready and not one.over():
                self._kill([one])

    def stop(self) -> None:
        """End all that was started and is left: by SIGTERM, 10 s later by SIGKILL."""
        self._kill(self._sets)
        for one in self._sets:
            self._close(one)
        self._server.close()
        self._selector.close()

    def _kill(self, sets: list[_Resident]) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for one in sets:
                if not one.over():
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(one.process.pid, number)
            _wait_until_over(sets)

    def _order(self, going: list[_Resident]) -> list[_Resident]:
        """Return the order of a round, by chance; what is `alike` and of equally many ranks has neighbouring turns."""
        chance = self._random.random
        kinds = {one.number: one.size if self._block.alike else one.number for one in going}
        places = {kind: chance() for kind in kinds.values()}
        return sorted(going, key=lambda one: (places[kinds[one.number]], chance()))

    def _steps(self, going: list[_Resident], number: int) -> dict[int, int]:
        """Return how many steps each set makes in its next turn."""
        steps = {}
        for one in going:
            steps[one.number] = 4
            if one.seconds:
                step = median(one.seconds[: _TRIES + 1])
                steps[one.number] = max(round(TURN_S / step), 3 if step > _LONG_S else _FEWEST)
        if not self._block.alike:
            return steps
        sizes = {one.number: one.size for one in going}
        return {key: min(steps[other] for other in steps if sizes[other] == sizes[key]) for key in steps}

    def _turn(self, one: _Resident, steps: int, number: int = 0) -> tuple[int, float, float, float, str]:
        """Give a set the turn, for so many timed steps or to its end (0), and wait until it gives it back.

        A single rank makes its turn of round `number` on the cores of another rank of the block, one after the other.
        Return the steps that it timed, the slowest rank's seconds, the cores of the rank that had least, the longest
        way between two ranks' cores (ns), and the cores that each might use; 0 steps where it has ended.
        """
        self._give(one, steps, number)
        if steps:
            self._wait_for([one])
        self._until(lambda: one.over() or one.ready)
        if one.over():
            self._close(one)
            return 0, 0.0, 0.0, 0.0, ""
        parts = [rank.heard[-1].split() for _, rank in sorted(one.ranks.items())]
        one.trained = any(part[0] == "last" for part in parts)
        return (
            min(int(part[1]) for part in parts),
            max(float(part[2]) for part in parts),
            min(float(part[3]) for part in parts),
            max(float(part[4]) for part in parts),
            ";".join(part[5] for part in parts),
        )

    def _give(self, one: _Resident, steps: int, number: int = 0) -> None:
        now = time.monotonic()
        one.paused_s += now - (one.waits_since or now)
        one.turns += 1
        for rank in one.ranks.values():
            rank.heard.clear()
            with contextlib.suppress(OSError):  # it has died: its launcher ends the set
                places = self._places if one.size == 1 and steps and rank.cores in self._places else [rank.cores]
                cores = places[(places.index(rank.cores) + number) % len(places)]
                rank.socket.sendall(f"go {one.turns} {steps} {one.paused_s:.9f} {cores}\n".encode())

    def _until(self, done: Any) -> None:
        """Take in what ranks say until `done`; processes that end say nothing, and are looked at."""
        while not done():
            for key, _ in self._selector.select(timeout=0.2):
                if key.fileobj is self._server:
                    connection, _ = self._server.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._selector.register(connection, selectors.EVENT_READ, _Rank(socket=connection))
                else:
                    self._take(key.data)

    def _take(self, rank: _Rank) -> None:
        content = b""
        with contextlib.suppress(OSError):
            content = rank.socket.recv(65536)
        if not content:
            self._selector.unregister(rank.socket)
            rank.socket.close()
            return
        *lines, rank.rest = (rank.rest + content).split(b"\n")
        for line in lines:
            words = line.decode(errors="replace").split()
            if words[:1] == ["rank"] and len(words) == 5 and words[1] in self._passwords:
                rank.of, rank.cores = self._sets[self._passwords.index(words[1])], words[4]
                rank.of.ranks[int(words[2])], rank.of.size = rank, int(words[3])
            elif rank.of is not None:
                rank.heard.append(line.decode(errors="replace"))
                if rank.of.ready:
                    rank.of.waits_since = time.monotonic()

    def _close(self, one: _Resident) -> None:
        for rank in one.ranks.values():
            if rank.socket.fileno() >= 0:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(rank.socket)
                rank.socket.close()


def _places(ranks: list[_Rank]) -> list[str]:
    """Return the cores of the `ranks` of a block where a single one may train in its turns: those of each.

    None where they are many, not of one memory or of several hosts: what is near one would be far from the other.
    """
    places = sorted({rank.cores for rank in ranks})
    memories = {
        node.name for cores in places for core in cores.split(",") for node in Path(f"{_CPUS}/cpu{core}").glob("node*")
    }
    hosts = {rank.socket.getpeername()[0] for rank in ranks if rank.socket.fileno() >= 0}
    alike = len({place.count(",") for place in places}) == 1
    return places if 1 < len(places) <= _PLACES and len(memories) < 2 and len(hosts) == 1 and alike else []


def _wait_until_over(sets: list[_Resident]) -> None:
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and not all(one.over() for one in sets):
        time.sleep(0.05)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockEnd:
    """What came of a block: every launch's exit code by name, and its turns.

    Columns of `turns`, one row a turn: round (int32), launch (its name), place (int32, in the round's order), steps
    (int32, timed), seconds (float64, of the slowest rank for those steps), cores (float64, CPU seconds a second of the
    rank that had least), at_s (float64, since the first round), core_ns (float64, as in `RunRecord`, 0 where it was not
    measured), bound (the cores that each rank might use, by rank, "0;1").
    """

    codes: "dict[str, int]"
    turns: "pd.DataFrame"


@contextlib.contextmanager
def warm_python(folder: Path) -> Iterator[str]:
    """Start a Python that has TensorFlow imported, and yield a program in `folder` whose processes are forked from it.

    Twenty processes import TensorFlow for minutes; forked, a block of them starts in seconds. Nothing of the harness is
    imported yet: it is that of the child's PYTHONPATH.

    Raises:
        RunError: it does not start.
    """
    program, address = folder / "python", folder / "warm"
    client = shlex.join([sys.executable, "-S", warm.__file__, str(address)])
    write_atomic(program, f'#!/bin/sh\nexec {client} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | ONE_THREAD | {"PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with (folder / "warm.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, warm.__file__, "--serve", str(address), str(program)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _WARM_S
        while not address.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                last = (folder / "warm.log").read_text(errors="replace").strip().rpartition("\n")[2]
                raise RunError(f"Python did not import TensorFlow: {last}")
            time.sleep(0.05)
        yield str(program)
    finally:
        assert server.stdin is not None
        server.stdin.close()  # it ends
        server.wait()


def run_block(block: Block, *, pass_fds: tuple[int, ...] = (), host: str = "127.0.0.1") -> BlockEnd:
    """Run `block` to its end. Whatever ends this process in an orderly way, an exception too, ends its launches.

    Its ranks reach this host by the address `host`.
    """
    referee = Referee(block, pass_fds=pass_fds, host=host)
    try:
        codes = referee.run()
    finally:
        referee.stop()
    import pandas as pd

    columns = {
        "round": "int32",
        "launch": "str",
        "place": "int32",
        "steps": "int32",
        "seconds": "float64",
        "cores": "float64",
        "at_s": "float64",
        "core_ns": "float64",
        "bound": "str",
    }
    return BlockEnd(codes=codes, turns=pd.DataFrame(referee.rounds, columns=list(columns)).astype(columns))


def _address(node: str) -> str:
    """Return the address by which `node` reaches this host: that of the way to it.

    Where the node's name is the scheduler's alone, it is the address that this host's own name has.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:  # nothing is sent
        try:
            way.connect((node, 9))
        except socket.gaierror as error:
            own = socket.gethostname()
            print(f"node {node} has no address ({error.strerror}): the turns are given by that of {own}", flush=True)
            return socket.gethostbyname(own)
        return str(way.getsockname()[0])


def _inside(one: RankSet) -> RankSet:
    """Return `one` with the words that its job has written down."""
    if one.words_file is None:
        return one
    words = tuple(Path(one.words_file).read_text().split("\0")[:-1])
    launcher = " ".join(words).partition(" -m harness ")[0]
    return replace(one, words=words, changes={**one.changes, "HARNESS_LAUNCHER": launcher})


def main(path: Path, node: str = "localhost") -> int:
    """Run the block in the file at `path`, write its turns and exit codes, and return the first code that is not 0.

    `node` is one of its nodes, not this one where there are several.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    try:
        block = decode(path.read_bytes(), Block, path)
        block = replace(block, sets=tuple(map(_inside, block.sets)))
        end = run_block(block, host=_address(node))
        write_atomic(Path(block.rounds), end.turns.to_parquet(index=False))
        for one in block.sets:
            if one.exit_file:
                write_atomic(Path(one.exit_file), f"{end.codes[one.name]}\n")
    except UserError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 2
    return next((code for code in end.codes.values() if code), 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:3]))
