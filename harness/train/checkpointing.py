"""Keeps a launch's checkpoints while it trains, takes it up from the newest one, and stops it when it is asked to."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from harness.base.errors import RunError, SharedError, UserError
from harness.schema.record import RUN_FILE, EpochRecord, Segment
from harness.schema.sweep import checkpoint_folder, forget_checkpoints
from harness.schema.sync import find_policy
from harness.schema.workload import parse_interval
from harness.train import resume
from harness.train.checkpoint import Header, newest_checkpoint, read_attempts, write_attempts, write_checkpoint
from harness.train.record import Columns
from harness.train.replica import Replica, seconds_per_step, trace_part
from harness.train.resume import Held, PartialEpoch
from harness.train.stop import Stopped, StopSignals

if TYPE_CHECKING:
    from mpi4py import MPI

_PIECE_S = 5.0  # a request to stop waits as long; an epoch that is shorter is trained in one piece, as without all this
_NOTE_S = 1.0


@dataclass(kw_only=True, slots=True)
class Progress:
    """What a launch has behind it: records and columns of whole epochs, and its part of the one under way."""

    epochs: list[EpochRecord] = field(default_factory=list)
    steps: list[Columns] = field(default_factory=list)
    part: PartialEpoch = field(default_factory=PartialEpoch)
    before: int = 0
    """Whole epochs that other ranks than these trained: they are in neither list."""

    @property
    def epoch(self) -> int:
        """The number of the epoch that comes next or is under way."""
        return self.before + len(self.epochs)

    @property
    def place(self) -> tuple[int, int]:
        """Whole epochs, and steps of the next one."""
        return self.epoch, self.part.steps


class Keeper:
    """One rank's side; every method but `close` is called on all ranks together. Without a `record` it does nothing."""

    def __init__(self, replica: Replica, record: Path | None) -> None:
        self._replica, self._world = replica, replica.world
        self._interval = parse_interval(replica.point.workload.checkpoint)
        self._folder = checkpoint_folder(record) if record and not self._interval.never else None
        if record and (record / RUN_FILE).exists() and self._world.rank == 0:
            forget_checkpoints(record)  # of a launch that was killed when its record was written
        self.notes: list[str] = []
        self._attempts: tuple[Segment, ...] = ()
        self._written, self._noted = time.monotonic(), 0.0
        self._since, self._sent = 0, 0  # steps since the last checkpoint, and epochs whose columns rank 0 has
        self._history: list[list[Columns]] = [[] for _ in range(self._world.size)]
        self._writer: threading.Thread | None = None
        self._unwritten = ""
        self._signals: StopSignals | None = None
        self._piece = replica.data.shards.full_steps
        if self._folder is not None:
            self._piece = self._agree_on_pieces()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The launch's attempts, on rank 0; none where it ran in one piece."""
        return self._attempts if len(self._attempts) > 1 else ()

    def take_up(self) -> Progress:
        """Return what an earlier attempt has left behind, and set all variables as they were then.

        Raises:
            SharedError: it was another launch, or cannot go on with this number of ranks; on every rank.
        """
        if self._folder is None:
            return Progress()
        folder, held, progress = self._folder, Held(), Progress()

        def find() -> Header | None:
            found = newest_checkpoint(folder, self._say)
            if found is None:
                return None
            resume.check_alike(found[0], self._replica, folder)
            held.update(found[1])
            return found[0]

        header = self._world.on_root(find)
        if header is not None:
            ranks = header.point.layout.ranks
            if header.point.code != self._replica.point.code:
                self._say("the checkpoint is of other code or versions: no promise that all bits are as in one piece")
            resume.restore_variables(self._world, self._replica, held, ranks)
            progress = self._share(header, held, ranks)
        if self._world.rank == 0:
            self._begin_attempt(header)
        return progress

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let a request to stop wait for a checkpoint while the block runs, and finish what is being written."""
        if self._folder is None:
            yield
            return
        begin = time.monotonic()
        usual = self._interval.seconds or 0.0
        self._signals = StopSignals(lambda: self._interval.asked or time.monotonic() - begin > usual)
        try:
            yield
        finally:
            self._signals.close()
            self._finish_writing()

    def next_cut(self, step: int, steps: int) -> int:
        """Return the step of an epoch of `steps` steps before which to pause next, `steps` for none; `step` is made."""
        cut = step + self._piece
        every = self._interval.steps
        if self._folder is not None and every and self._piece < steps:
            cut = min(cut, step + self._aligned(every - self._since % every))
        return min(cut, steps)

    def boundary(self, progress: Progress, *, made: int) -> None:
        """Write a checkpoint if one is due, behind `made` more steps; end the launch if that is asked.

        Raises:
            Stopped: a signal asked for it, on any rank; there is a checkpoint of this moment.
        """
        if self._folder is None:
            return
        self._since += made
        asked = self._signals.asked if self._signals else 0
        wanted = np.array([asked, self._world.rank == 0 and self._due()], np.int64)
        agreed = np.empty_like(wanted)
        self._world.comm.Allreduce(wanted, agreed, op=_maximum())
        stop, due = (int(value) for value in agreed)
        if stop or due:
            self._save(progress)
        if self._world.rank == 0:
            self._note(progress, stopped=signal.Signals(stop).name if stop else "")
        if stop:
            self._end(progress, signal.Signals(stop).name)

    def _end(self, progress: Progress, name: str) -> NoReturn:
        """End the launch, on all ranks, when its checkpoint is written."""
        self._finish_writing()
        where = f"epoch {progress.epoch + 1}, {progress.part.steps} steps into it"
        unwritten = self._world.comm.bcast(self._unwritten, root=0)
        if unwritten:
            raise SharedError(RunError(f"stopped by {name} in {where}, without a checkpoint: {unwritten}"))
        raise Stopped(f"stopped by {name} in {where}: the same command goes on from there")

    def _due(self) -> bool:
        if self._interval.steps:
            return self._since >= self._interval.steps
        return time.monotonic() - self._written >= (self._interval.seconds or 0.0)

    def _aligned(self, steps: int) -> int:
        """Return at least `steps`, so many that all averages of weights that are due have been made."""
        period = find_policy(self._replica.point.workload.sync).period or 1
        return -(-steps // period) * period

    def _agree_on_pieces(self) -> int:
        """Return into how many steps an epoch is to be divided, all of them where it is short or cannot be."""
        steps = self._replica.data.shards.full_steps
        if find_policy(self._replica.point.workload.sync).period is None or steps < 2:
            return steps
        seconds = self._world.comm.bcast(seconds_per_step(self._replica), root=0)
        piece = self._aligned(max(1, int(_PIECE_S / seconds)))
        if min(piece, self._interval.steps or piece) >= steps:
            return steps
        trace_part(self._replica)
        return min(piece, steps - 1)

    def _share(self, header: Header, held: Held, ranks: int) -> Progress:
        """Hand every rank what it had of the steps; of another number of ranks, what all can go on with."""
        own = [_of_rank(held, rank) for rank in range(ranks)] if held else None
        world = self._world
        if ranks != world.size:
            parts = world.comm.bcast([resume.read_steps(one)[1] for one in own or ()], root=0)
            self._say(f"{ranks} ranks trained until then: of their epochs there is nothing in this record")
            return Progress(part=resume.part_for_others(parts, self._replica), before=header.epoch)
        self._history = [resume.read_steps(one)[0] for one in own or ()] or self._history
        self._sent = header.epoch
        world.comm.Barrier()
        steps, part = resume.read_steps(world.comm.scatter(own, root=0))
        return Progress(epochs=list(header.epochs), steps=steps, part=part)

    def _save(self, progress: Progress) -> None:
        """Copy what all ranks hold and have a thread of rank 0 write it."""
        variables = resume.state_variables(self._replica)
        held = resume.hold_variables(self._world, variables)
        gathered = self._world.comm.gather((progress.steps[self._sent :], progress.part), root=0)
        self._sent, self._since, self._written = len(progress.steps), 0, time.monotonic()
        if gathered is None:
            return
        for history, (columns, _) in zip(self._history, gathered, strict=True):
            history += columns
        shards = self._replica.data.shards
        header = Header(
            point=self._replica.point,
            epoch=progress.epoch,
            step=progress.part.steps,
            global_batch=shards.batch,
            steps_per_epoch=shards.full_steps,
            epochs=tuple(progress.epochs),
            written=datetime.now(UTC),
        )
        self._finish_writing()
        rows = [(list(history), part) for history, (_, part) in zip(self._history, gathered, strict=True)]
        self._writer = threading.Thread(target=self._write, args=(header, held, rows))
        self._writer.start()

    def _write(self, header: Header, held: Held, rows: list[tuple[list[Columns], PartialEpoch]]) -> None:
        assert self._folder is not None
        for rank, (columns, part) in enumerate(rows):
            held |= {f"rank/{rank}/{name}": value for name, value in resume.hold_steps(columns, part).items()}
        try:
            write_checkpoint(self._folder, header, held)
            self._unwritten = ""
        except UserError as error:
            self._unwritten = str(error)
            self._say(f"no checkpoint of epoch {header.epoch + 1}, step {header.step}: {error}")

    def _finish_writing(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _begin_attempt(self, header: Header | None) -> None:
        """Note that this attempt has begun, behind those that came before the checkpoint of `header`."""
        now = datetime.now(UTC)
        attempt = Segment(started=now, ended=now, begin=(0, 0), end=(0, 0), ranks=self._world.size)
        self._attempts = (attempt,)
        if header is not None:
            place = (header.epoch, header.step)
            unknown = replace(attempt, started=header.written, ended=header.written, end=place)
            before = read_attempts(self._folder) if self._folder else ()
            last = (before or (unknown,))[-1]
            redone = (last.end[0] - place[0]) * self._replica.data.shards.full_steps + last.end[1] - place[1]
            self._attempts = (*(before or (unknown,)), replace(attempt, begin=place, end=place, redone=max(0, redone)))
            how = f"which {last.stopped} had stopped" if last.stopped else "which had been killed or had failed"
            self._say(
                f"goes on from epoch {place[0] + 1}, {place[1]} steps into it, of a launch {how} "
                f"{max(0, redone)} steps later, at {last.ended:%Y-%m-%d %H:%M:%S} UTC"
            )

    def _note(self, progress: Progress, *, stopped: str = "") -> None:
        """Note how far this attempt has come, at most once a second; on rank 0."""
        if not stopped and time.monotonic() - self._noted < _NOTE_S:
            return
        assert self._folder is not None
        self.finish(progress, stopped=stopped)
        self._noted = time.monotonic()
        try:
            write_attempts(self._folder, self._attempts)
        except UserError as error:
            self._say(str(error))

    def finish(self, progress: Progress, *, stopped: str = "") -> None:
        """Take down how far this attempt has come."""
        if self._attempts:
            now = replace(self._attempts[-1], ended=datetime.now(UTC), end=progress.place, stopped=stopped)
            self._attempts = (*self._attempts[:-1], now)

    def _say(self, text: str) -> None:
        if self._world.rank == 0 and text not in self.notes:
            print(text, flush=True)
            self.notes.append(text)


def _of_rank(held: Held, rank: int) -> Held:
    prefix = f"rank/{rank}/"
    return {name.removeprefix(prefix): value for name, value in held.items() if name.startswith(prefix)}


def _maximum() -> "MPI.Op":
    from mpi4py import MPI

    return MPI.MAX
