"""Checkpoints of a launch: written while it trains, resumed by its next attempt; and its end when that is requested."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import RunError, SharedError, UserError
from harness.base.files import write_atomic
from harness.schema.record import Segment, encode
from harness.schema.record_notes import Note, NoteCode
from harness.schema.sweep_folder import ATTEMPTS_FILE, LaunchFolder
from harness.schema.sync_policies import find_policy
from harness.schema.workload import parse_interval
from harness.train.checkpoint_file import Arrays, Header, newest_checkpoint, read_attempts, write_checkpoint
from harness.train.checkpoint_state import (
    check_same_launch,
    gather_variables,
    part_of_others,
    restore_variables,
    steps_from_arrays,
    steps_to_arrays,
)
from harness.train.partial_epoch import PartialEpoch, Progress
from harness.train.replica import Replica, seconds_per_step, trace_part
from harness.train.step_table import Columns
from harness.train.stop_signals import Stopped, StopSignals

_PIECE_S = 5.0  # a request to stop waits as long; an epoch that is shorter is trained in one piece, as without all this
_NOTE_S = 1.0


class Checkpointing:
    """One rank's side of it; every method is called on all ranks together. Without a `record` it does nothing."""

    def __init__(self, replica: Replica, record: Path | None) -> None:
        self._replica = replica
        self._world = replica.world
        self._interval = parse_interval(replica.point.workload.checkpoint)
        self._folder = LaunchFolder(record).checkpoints if record and not self._interval.never else None
        if record and LaunchFolder(record).is_recorded and self._world.rank == 0:
            LaunchFolder(record).forget_checkpoints()  # of a launch that was killed when its record was written
        self.notes: list[Note] = []
        self._attempts: tuple[Segment, ...] = ()
        self._written = time.monotonic()
        self._noted = 0.0
        self._since = 0  # steps since the last checkpoint
        self._sent = 0  # epochs whose columns rank 0 has
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

    def resume(self) -> Progress:
        """Return what an earlier attempt has left, and set all variables as they were then.

        Raises:
            SharedError: it was another launch, or cannot go on with this number of ranks; on every rank.
        """
        if self._folder is None:
            return Progress()
        folder = self._folder
        progress = Progress()
        arrays = Arrays()

        def find() -> Header | None:
            newest = newest_checkpoint(folder, lambda reason: self._note(NoteCode.CHECKPOINT_NOT_READ, reason=reason))
            if newest is None:
                return None
            header, values = newest
            check_same_launch(header, self._replica, folder)
            arrays.update(values)
            return header

        header = self._world.on_root(find)
        if header is not None:
            if header.point.code != self._replica.point.code:
                self._note(NoteCode.OTHER_CODE)
            restore_variables(self._replica, arrays, header.point.layout.ranks)
            progress = self._hand_out(header, arrays)
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
        usual_s = self._interval.seconds or 0.0
        self._signals = StopSignals(lambda: self._interval.asked or time.monotonic() - begin > usual_s)
        try:
            yield
        finally:
            self._signals.close()
            self._finish_writing()

    def next_pause(self, step: int, steps: int) -> int:
        """Return before which step of an epoch of `steps` to pause next, `steps` for none; `step` steps are made."""
        pause = step + self._piece
        every = self._interval.steps
        if self._folder is not None and every and self._piece < steps:
            pause = min(pause, step + self._aligned(every - self._since % every))
        return min(pause, steps)

    def pause(self, progress: Progress, *, steps: int) -> None:
        """Write a checkpoint if one is due, `steps` steps after the last pause; end the launch if that was requested.

        Raises:
            Stopped: a signal requested it, on any rank; there is a checkpoint of this moment.
        """
        if self._folder is None:
            return
        self._since += steps
        if self._interval.steps:
            due = self._since >= self._interval.steps
        else:
            due = time.monotonic() - self._written >= (self._interval.seconds or 0.0)
        asked = self._world.comm.allgather((self._signals.asked if self._signals else 0, due))
        number = max(signals for signals, _ in asked)
        stopped = signal.Signals(number).name if number else ""
        if stopped or asked[0][1]:
            self._save(progress)
        if self._world.rank == 0 and (stopped or time.monotonic() - self._noted >= _NOTE_S):
            self.finish(progress, stopped=stopped)
            self._noted = time.monotonic()
            try:
                write_atomic(self._folder / ATTEMPTS_FILE, encode(self._attempts))
            except UserError as error:
                self._note(NoteCode.ATTEMPTS_NOT_WRITTEN, reason=str(error))
        if not stopped:
            return
        self._finish_writing()
        where = f"stopped by {stopped} in epoch {progress.epoch + 1}, {progress.part.steps} steps into it"
        if unwritten := self._world.comm.bcast(self._unwritten, root=0):
            raise SharedError(RunError(f"{where}, without a checkpoint: {unwritten}"))
        raise Stopped(f"{where}: the same command goes on from there")

    def finish(self, progress: Progress, *, stopped: str = "") -> None:
        """Note how far this attempt has come, and the signal that `stopped` it, if any."""
        if self._attempts:
            place = (progress.epoch, progress.part.steps)
            now = replace(self._attempts[-1], ended=datetime.now(UTC), end=place, stopped=stopped)
            self._attempts = (*self._attempts[:-1], now)

    def _aligned(self, steps: int) -> int:
        """Return the least number of steps, `steps` or more, after which no average of weights is due."""
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

    def _hand_out(self, header: Header, arrays: Arrays) -> Progress:
        """Hand every rank what it had of the steps; of another number of ranks, what all can go on with."""
        world = self._world
        ranks = header.point.layout.ranks
        rank_arrays = [Arrays() for _ in range(ranks)] if arrays else None
        for place, value in arrays.items():
            if rank_arrays and place.startswith("rank/"):
                _, rank, name = place.split("/", 2)
                rank_arrays[int(rank)][name] = value
        if ranks != world.size:
            parts = world.comm.bcast([steps_from_arrays(values)[1] for values in rank_arrays or ()], root=0)
            self._note(NoteCode.OTHER_RANKS, ranks=ranks)
            return Progress(part=part_of_others(parts, self._replica), before=header.epoch)
        self._history = [steps_from_arrays(values)[0] for values in rank_arrays or ()] or self._history
        self._sent = header.epoch
        world.comm.Barrier()
        steps, part = steps_from_arrays(world.comm.scatter(rank_arrays, root=0))
        return Progress(epochs=list(header.epochs), steps=steps, part=part)

    def _save(self, progress: Progress) -> None:
        """Copy the state of all ranks and have a thread of rank 0 write it."""
        arrays = gather_variables(self._replica)
        gathered = self._world.comm.gather((progress.steps[self._sent :], progress.part), root=0)
        self._sent = len(progress.steps)
        self._since = 0
        self._written = time.monotonic()
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
        self._writer = threading.Thread(target=self._write, args=(header, arrays, rows))
        self._writer.start()

    def _write(self, header: Header, arrays: Arrays, rows: list[tuple[list[Columns], PartialEpoch]]) -> None:
        assert self._folder is not None
        for rank, (columns, part) in enumerate(rows):
            arrays |= {f"rank/{rank}/{name}": value for name, value in steps_to_arrays(columns, part).items()}
        try:
            write_checkpoint(self._folder, header, arrays)
            self._unwritten = ""
        except UserError as error:
            self._unwritten = str(error)
            self._note(
                NoteCode.CHECKPOINT_NOT_WRITTEN, epoch=header.epoch + 1, step=header.step, reason=self._unwritten
            )

    def _finish_writing(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _begin_attempt(self, header: Header | None) -> None:
        """Note that this attempt has begun, after those before the checkpoint of `header`."""
        now = datetime.now(UTC)
        attempt = Segment(started=now, ended=now, begin=(0, 0), end=(0, 0), ranks=self._world.size)
        if header is None or self._folder is None:
            self._attempts = (attempt,)
            return
        place = (header.epoch, header.step)
        unknown = replace(attempt, started=header.written, ended=header.written, end=place)
        before = read_attempts(self._folder) or (unknown,)
        last = before[-1]
        redone = (last.end[0] - place[0]) * self._replica.data.shards.full_steps + last.end[1] - place[1]
        self._attempts = (*before, replace(attempt, begin=place, end=place, redone=max(0, redone)))
        self._note(
            NoteCode.RESUMED,
            epoch=place[0] + 1,
            steps=place[1],
            ended=f"{last.stopped} had stopped" if last.stopped else "had been killed or had failed",
            redone=max(0, redone),
            when=f"{last.ended:%Y-%m-%d %H:%M:%S}",
        )

    def _note(self, code: NoteCode, **values: str | int) -> None:
        """Keep a note for the record and print its sentence, on rank 0, each once."""
        note = Note(code=code, values=values)
        if self._world.rank == 0 and note not in self.notes:
            print(note, flush=True)
            self.notes.append(note)
