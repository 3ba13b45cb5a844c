"""Checkpoints of a launch: written while it trains, resumed by its next attempt; and its end when that is requested."""

import hashlib
import io
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import RunError, SharedError, UserError
from harness.base.files import read_bytes, write_atomic
from harness.base.removal import remove_file
from harness.base.setting_names import setting
from harness.base.turns import clock
from harness.comm.replicas import hash_weights
from harness.comm.world import World, needs_sync
from harness.schema.own_code import find_policy
from harness.schema.point import Point
from harness.schema.record import EpochRecord, Segment, decode, encode
from harness.schema.record_notes import Note, NoteCode
from harness.schema.setting_words import setting_differences
from harness.schema.sweep_folder import ATTEMPTS_FILE, CHECKPOINT_SUFFIX, LaunchFolder, checkpoint_files
from harness.schema.workload import parse_interval
from harness.train.replica import Replica, seconds_per_step, trace_part
from harness.train.step_table import Columns, per_step
from harness.train.stop_signals import Stopped, StopSignals

# Checkpoint files of a launch, without TensorFlow and MPI.
#
# A checkpoint is one file, written whole or not at all, verified by a checksum when it is read, and holds numbers
# only.

_KEPT = 2  # the newest, and the one to fall back to should that be damaged
_HEADER = "header"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a checkpoint is of: `epoch` whole epochs, recorded in `epochs`, and `step` steps of the next one.

    `global_batch` is in rows over all ranks, `steps_per_epoch` without an epoch's partial batch.
    """

    point: Point
    epoch: int
    step: int
    global_batch: int
    steps_per_epoch: int
    epochs: tuple[EpochRecord, ...]
    written: datetime


def write_checkpoint(folder: Path, header: Header, arrays: Arrays) -> None:
    """Write a checkpoint and remove all but the newest two.

    The file is the SHA-256 of what follows (64 hexadecimal digits and a newline), and NumPy's .npz of `arrays` with
    the header as JSON.

    Raises:
        UserError: the folder cannot be written to or the disk is full; what was there is there still.
    """
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **{_HEADER: np.frombuffer(encode(header), np.uint8)}, **arrays)
    body = content.getbuffer()
    digest = hashlib.sha256(body).hexdigest()
    write_atomic(
        folder / f"{header.epoch:06d}-{header.step:09d}{CHECKPOINT_SUFFIX}", b"%s\n%s" % (digest.encode(), body)
    )
    for old in checkpoint_files(folder)[_KEPT:]:
        remove_file(old)


def read_checkpoint(path: Path) -> tuple[Header, Arrays]:
    """Return what a checkpoint holds; raise a UserError if it cannot be read, is damaged, or is not a checkpoint."""
    digest, _, body = read_bytes(path, "checkpoint").partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise UserError(f"checkpoint '{path}' is cut or damaged: its checksum does not match")
    try:
        with np.lib.npyio.NpzFile(io.BytesIO(body), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = decode(arrays.pop(_HEADER).tobytes(), Header, path)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"checkpoint '{path}' is not one of this harness's: {error}") from error
    return header, arrays


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> tuple[Header, Arrays] | None:
    """Return the newest checkpoint in `folder` that is whole, None without one; `say` gets a sentence on each other."""
    for path in checkpoint_files(folder):
        try:
            return read_checkpoint(path)
        except UserError as error:
            say(f"{error}; the previous one is used")
    return None


def read_attempts(folder: Path) -> tuple[Segment, ...]:
    """Return the attempts noted in `folder`; none where they cannot be read."""
    path = folder / ATTEMPTS_FILE
    try:
        return decode(path.read_bytes(), tuple[Segment, ...], path)
    except (OSError, UserError):
        return ()


# How far a launch has come: whole epochs, and one rank's steps of the epoch under way.

Floats = npt.NDArray[np.float64]


@dataclass(kw_only=True, slots=True)
class PartialEpoch:
    """What one rank has of an epoch that is under way: a value for every step made, times in seconds.

    `losses` as `Epoch` returns them, `calls` [calls, 2] since the epoch's begin, `statistics` the seconds inside batch
    normalisation's calls, empty without them; `seconds` since the epoch's begin, `input_s` of them for the order.
    `before`: steps that were made earlier and have no value here.
    """

    losses: list[npt.NDArray[np.float32]] = field(default_factory=list)
    calls: list[Floats] = field(default_factory=list)
    statistics: list[Floats] = field(default_factory=list)
    seconds: float = 0.0
    input_s: float = 0.0
    before: int = 0

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return self.before + sum(map(len, self.losses))

    def add(self, replica: Replica, begin: float, losses: tf.Tensor) -> None:
        """Add steps that have just been made; `begin` (s, clock) is the epoch's."""
        self.losses.append(losses.numpy())
        self.seconds = clock() - begin
        if replica.statistics:
            self.statistics.append(per_step(replica.statistics.take_calls(), len(losses)))
        self.calls.append(replica.reduction.take_calls() - begin)


@dataclass(kw_only=True, slots=True)
class Progress:
    """What a launch has done: records and columns of whole epochs, and its part of the current one."""

    epochs: list[EpochRecord] = field(default_factory=list)
    steps: list[Columns] = field(default_factory=list)
    part: PartialEpoch = field(default_factory=PartialEpoch)
    before: int = 0
    """Whole epochs that were trained on another number of ranks: they are in neither list."""

    @property
    def epoch(self) -> int:
        """The number of the epoch that comes next or is under way."""
        return self.before + len(self.epochs)


# The state of a launch as a checkpoint's arrays, and back: variables of all ranks, steps of each.

_LISTS = ("losses", "calls", "statistics")  # of a `PartialEpoch`


def gather_variables(replica: Replica) -> Arrays:
    """Return copies of all variables on rank 0, one where all ranks have the same value, else each rank's own.

    They are under the variable's number and, of a rank's own, the rank's; empty on other ranks.
    """
    world = replica.world
    variables = replica.variables
    arrays = Arrays()
    all_equal = _equal_on_all(world, variables)
    for index, variable in enumerate(variables):
        value = np.array(variable.numpy(), order="C")
        if all_equal or _equal_on_all(world, [variable]):
            arrays |= {f"variable/{index}": value} if world.rank == 0 else {}
            continue
        values = np.empty((world.size, value.nbytes), np.uint8) if world.rank == 0 else None
        world.comm.Gather(_raw(value), values, root=0)
        for rank, row in enumerate(values if values is not None else ()):
            arrays[f"variable/{index}/{rank}"] = row.copy().view(value.dtype).reshape(value.shape)
    return arrays


def _equal_on_all(world: World, variables: list[keras.Variable]) -> bool:
    return len(set(world.comm.allgather(hash_weights(variables)))) == 1


def restore_variables(replica: Replica, arrays: Arrays, ranks: int) -> None:
    """Set all variables to what `gather_variables` found on `ranks` ranks; only rank 0 need have it.

    On another number of ranks, values of each rank's own (optimizer state under averaged weights, statistics of batch
    normalisation) become their mean, but for what a sync policy keeps.

    Raises:
        SharedError: they are not of this network, or were each rank's own and have no mean; on every rank.
    """
    world = replica.world
    variables = replica.variables
    world.on_root(lambda: _check_variables(replica, arrays, ranks))
    shared = world.comm.bcast([f"variable/{index}" in arrays for index in range(len(variables))], root=0)
    for index, variable in enumerate(variables):
        value = np.array(variable.numpy(), order="C")
        rank_values = None
        if arrays and not shared[index]:
            rank_values = [arrays[f"variable/{index}/{rank}"] for rank in range(ranks)]
        if shared[index] or ranks != world.size:
            if rank_values is not None:
                value[...] = np.mean(rank_values, axis=0, dtype=np.float64)
            elif arrays:
                value[...] = arrays[f"variable/{index}"]
            world.comm.Bcast(_raw(value), root=0)
        else:
            sent = None if rank_values is None else np.stack(list(map(_raw, rank_values)))
            world.comm.Scatter(sent, _raw(value), root=0)
        variable.assign(value)


def _raw(value: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous array, without a copy: MPI does not know all of TensorFlow's types."""
    return value.reshape(-1).view(np.uint8)


def _check_variables(replica: Replica, arrays: Arrays, ranks: int) -> None:
    """Raise a UserError where the values in `arrays`, of `ranks` ranks, do not suit this network or number of ranks."""
    variables = replica.variables
    state = replica.state
    trained = {id(variable) for variable in (*state.model.trainable_variables, *state.synchroniser.state)}
    count = len({name.split("/")[1] for name in arrays if name.startswith("variable/")})
    if count != len(variables):
        mismatch = f"the checkpoint has {count} variables, this network {len(variables)}"
        raise UserError(f"{mismatch}: use another {setting('record')}")
    for index, variable in enumerate(variables):
        value = arrays.get(f"variable/{index}", arrays.get(f"variable/{index}/0"))
        current = variable.numpy()
        if value is None or value.shape != current.shape or value.dtype.itemsize != current.dtype.itemsize:
            raise UserError(
                f"the checkpoint does not have this network's variable '{variable.path}': use another "
                f"{setting('record')}"
            )
        meaningless = id(variable) in trained or current.dtype.kind in "iub"
        if ranks != replica.world.size and f"variable/{index}" not in arrays and meaningless:
            raise UserError(
                f"the checkpoint has '{variable.path}' of each of its {ranks} ranks, of which there is no mean: "
                f"go on with {ranks} ranks"
            )


def steps_to_arrays(columns: Sequence[Columns], part: PartialEpoch) -> Arrays:
    """Return one rank's columns of whole epochs, and its part of the one under way, as arrays."""
    lists = {}
    for name in columns[0] if columns else ():
        lists[f"columns/{name}"] = [epoch_columns[name] for epoch_columns in columns]
    lists |= {f"part/{name}": getattr(part, name) for name in _LISTS if getattr(part, name)}
    times = {"part/times": np.array([part.seconds, part.input_s])}
    return {name: np.concatenate(values) for name, values in lists.items()} | times


def steps_from_arrays(arrays: Arrays) -> tuple[list[Columns], PartialEpoch]:
    """Return what `steps_to_arrays` was given.

    The epochs begin now, on this process's clock, which is not the clock of the one that wrote them.
    """
    columns = {name.removeprefix("columns/"): value for name, value in arrays.items() if name.startswith("columns/")}
    epochs: list[Columns] = []
    if columns:
        columns["begin_s"] = np.full(len(columns["epoch"]), clock())
        borders = np.flatnonzero(np.diff(columns["epoch"])) + 1
        pieces = {name: np.split(value, borders) for name, value in columns.items()}
        for epoch in range(len(borders) + 1):
            epochs.append({name: value[epoch] for name, value in pieces.items()})
    lists: dict[str, Any] = {name: [arrays[f"part/{name}"]] for name in _LISTS if f"part/{name}" in arrays}
    times = arrays.get("part/times", np.zeros(2))
    return epochs, PartialEpoch(**lists, seconds=float(times[0]), input_s=float(times[1]))


def part_of_others(parts: Sequence[PartialEpoch], replica: Replica) -> PartialEpoch:
    """Return what a rank of another number of ranks takes over of `parts`: rank 0 all losses, none of them times."""
    world = replica.world
    steps = parts[0].steps
    if not steps:
        return PartialEpoch()
    losses = np.asarray(np.sum([np.concatenate(part.losses) for part in parts], axis=0, dtype=np.float64), np.float32)
    policy = replica.state.synchroniser.policy
    every = 1 if policy.shares_gradients else policy.period
    calls = steps // every if every and needs_sync(world.size) else 0
    return PartialEpoch(
        losses=[losses if world.rank == 0 else np.zeros_like(losses)],
        calls=[np.full((calls, 2), np.nan)],
        statistics=[np.zeros(steps)] if replica.statistics else [],
    )


def check_same_launch(header: Header, replica: Replica, where: object) -> None:
    """Refuse a checkpoint of another launch; the number of ranks may be another, the global batch may not.

    Raises:
        UserError: naming what is another.
    """
    point = replica.point
    shards = replica.data.shards
    before = header.point
    free = {name: getattr(point.workload, name) for name in ("batch_per_rank", "global_batch", "checkpoint")}
    differences: list[tuple[str, object, object]] = [
        *setting_differences(replace(before.workload, **free), point.workload),
        ("global batch", header.global_batch, shards.batch),
        ("steps per epoch", header.steps_per_epoch, shards.full_steps),
        ("seed", before.seed, point.seed),
        ("data", before.data_id, point.data_id),
    ]
    for name, old, new in differences:
        if old != new:
            raise UserError(
                f"the checkpoints in '{where}' are of another launch ({name} {old}, here {new}): "
                f"delete that folder, or choose another {setting('record')}"
            )


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
