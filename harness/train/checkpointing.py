"""Checkpoints of a launch: written while it trains, resumed by its next attempt; and its end when that is requested."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import RunError, SharedError, UserError
from harness.base.files import write_atomic
from harness.base.turns import clock
from harness.comm.policies import hash_weights
from harness.comm.world import World, needs_sync
from harness.schema.record import EpochRecord, Segment, encode
from harness.schema.sweep_folder import LaunchFolder
from harness.schema.sync import find_policy
from harness.schema.workload import parse_interval
from harness.train.checkpoint_file import (
    ATTEMPTS,
    Arrays,
    Header,
    Stopped,
    StopSignals,
    newest_checkpoint,
    read_attempts,
    write_checkpoint,
)
from harness.train.launch_record import Columns, per_step
from harness.train.replica import Replica, seconds_per_step, trace_part

_LISTS = ("losses", "calls", "statistics")  # of a `PartialEpoch`
_PIECE_S = 5.0  # a request to stop waits as long; an epoch that is shorter is trained in one piece, as without all this
_NOTE_S = 1.0

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
    """What a launch has behind it: records and columns of whole epochs, and its part of the one under way."""

    epochs: list[EpochRecord] = field(default_factory=list)
    steps: list[Columns] = field(default_factory=list)
    part: PartialEpoch = field(default_factory=PartialEpoch)
    before: int = 0
    """Whole epochs that were trained on another number of ranks: they are in neither list."""

    @property
    def epoch(self) -> int:
        """The number of the epoch that comes next or is under way."""
        return self.before + len(self.epochs)


def gather_variables(replica: Replica) -> Arrays:
    """Return copies of all variables on rank 0, one where all ranks have the same value, else each rank's own.

    They are under the variable's number and, of a rank's own, the rank's; empty on other ranks.
    """
    world, variables, arrays = replica.world, replica.variables, Arrays()
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
    world, variables = replica.world, replica.variables
    world.on_root(lambda: _check_variables(replica, arrays, ranks))
    shared = world.comm.bcast([f"variable/{index}" in arrays for index in range(len(variables))], root=0)
    for index, variable in enumerate(variables):
        value = np.array(variable.numpy(), order="C")
        own = [arrays[f"variable/{index}/{rank}"] for rank in range(ranks)] if arrays and not shared[index] else None
        if shared[index] or ranks != world.size:
            if arrays:
                value[...] = arrays[f"variable/{index}"] if own is None else np.mean(own, axis=0, dtype=np.float64)
            world.comm.Bcast(_raw(value), root=0)
        else:
            world.comm.Scatter(None if own is None else np.stack([_raw(one) for one in own]), _raw(value), root=0)
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
        raise UserError(f"the checkpoint has {count} variables, this network {len(variables)}: use another --record")
    for index, variable in enumerate(variables):
        value = arrays.get(f"variable/{index}", arrays.get(f"variable/{index}/0"))
        own = variable.numpy()
        if value is None or value.shape != own.shape or value.dtype.itemsize != own.dtype.itemsize:
            raise UserError(
                f"the checkpoint does not have this network's variable '{variable.path}': use another --record"
            )
        meaningless = id(variable) in trained or own.dtype.kind in "iub"
        if ranks != replica.world.size and f"variable/{index}" not in arrays and meaningless:
            raise UserError(
                f"the checkpoint has '{variable.path}' of each of its {ranks} ranks, of which there is no mean: "
                f"go on with {ranks} ranks"
            )


def steps_to_arrays(columns: Sequence[Columns], part: PartialEpoch) -> Arrays:
    """Return one rank's columns of whole epochs, and its part of the one under way, as arrays."""
    lists = {f"columns/{name}": [one[name] for one in columns] for name in (columns[0] if columns else ())}
    lists |= {f"part/{name}": getattr(part, name) for name in _LISTS if getattr(part, name)}
    times = {"part/times": np.array([part.seconds, part.input_s])}
    return {name: np.concatenate(values) for name, values in lists.items()} | times


def steps_from_arrays(arrays: Arrays) -> tuple[list[Columns], PartialEpoch]:
    """Return what `steps_to_arrays` was given.

    The epochs begin now, on this process's clock, which is not the clock of the one that wrote them.
    """
    columns = {name.removeprefix("columns/"): value for name, value in arrays.items() if name.startswith("columns/")}
    found: list[Columns] = []
    if columns:
        columns["begin_s"] = np.full(len(columns["epoch"]), clock())
        borders = np.flatnonzero(np.diff(columns["epoch"])) + 1
        pieces = {name: np.split(value, borders) for name, value in columns.items()}
        found = [{name: value[epoch] for name, value in pieces.items()} for epoch in range(len(borders) + 1)]
    lists: dict[str, Any] = {name: [arrays[f"part/{name}"]] for name in _LISTS if f"part/{name}" in arrays}
    times = arrays.get("part/times", np.zeros(2))
    return found, PartialEpoch(**lists, seconds=float(times[0]), input_s=float(times[1]))


def part_of_others(parts: Sequence[PartialEpoch], replica: Replica) -> PartialEpoch:
    """Return what a rank of another number of ranks takes over of `parts`: rank 0 all losses, none of them times."""
    world, steps = replica.world, parts[0].steps
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


class Checkpointing:
    """One rank's side of it; every method is called on all ranks together. Without a `record` it does nothing."""

    def __init__(self, replica: Replica, record: Path | None) -> None:
        self._replica, self._world = replica, replica.world
        self._interval = parse_interval(replica.point.workload.checkpoint)
        self._folder = LaunchFolder(record).checkpoints if record and not self._interval.never else None
        if record and LaunchFolder(record).is_recorded and self._world.rank == 0:
            LaunchFolder(record).forget_checkpoints()  # of a launch that was killed when its record was written
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

    def resume(self) -> Progress:
        """Return what an earlier attempt has left behind, and set all variables as they were then.

        Raises:
            SharedError: it was another launch, or cannot go on with this number of ranks; on every rank.
        """
        if self._folder is None:
            return Progress()
        folder, progress, arrays = self._folder, Progress(), Arrays()

        def find() -> Header | None:
            found = newest_checkpoint(folder, self._say)
            if found is None:
                return None
            _check_same_launch(found[0], self._replica, folder)
            arrays.update(found[1])
            return found[0]

        header = self._world.on_root(find)
        if header is not None:
            if header.point.code != self._replica.point.code:
                self._say(
                    "the checkpoint is of a different code version: weights may differ in their last bits from those "
                    "of a launch in one piece"
                )
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
        begin, usual = time.monotonic(), self._interval.seconds or 0.0
        self._signals = StopSignals(lambda: self._interval.asked or time.monotonic() - begin > usual)
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

    def pause(self, progress: Progress, *, made: int) -> None:
        """Write a checkpoint if one is due, `made` steps after the last pause; end the launch if that was requested.

        Raises:
            Stopped: a signal requested it, on any rank; there is a checkpoint of this moment.
        """
        if self._folder is None:
            return
        self._since += made
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
                write_atomic(self._folder / ATTEMPTS, encode(self._attempts))
            except UserError as error:
                self._say(str(error))
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

    def _hand_out(self, header: Header, arrays: Arrays) -> Progress:
        """Hand every rank what it had of the steps; of another number of ranks, what all can go on with."""
        world, ranks = self._world, header.point.layout.ranks
        own = [Arrays() for _ in range(ranks)] if arrays else None
        for place, value in arrays.items():
            if own and place.startswith("rank/"):
                _, rank, name = place.split("/", 2)
                own[int(rank)][name] = value
        if ranks != world.size:
            parts = world.comm.bcast([steps_from_arrays(one)[1] for one in own or ()], root=0)
            self._say(f"{ranks} ranks trained until then: their epochs are not in this record")
            return Progress(part=part_of_others(parts, self._replica), before=header.epoch)
        self._history = [steps_from_arrays(one)[0] for one in own or ()] or self._history
        self._sent = header.epoch
        world.comm.Barrier()
        steps, part = steps_from_arrays(world.comm.scatter(own, root=0))
        return Progress(epochs=list(header.epochs), steps=steps, part=part)

    def _save(self, progress: Progress) -> None:
        """Copy the state of all ranks and have a thread of rank 0 write it."""
        arrays = gather_variables(self._replica)
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
            self._say(f"no checkpoint of epoch {header.epoch + 1}, step {header.step}: {error}")

    def _finish_writing(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _begin_attempt(self, header: Header | None) -> None:
        """Note that this attempt has begun, behind those that came before the checkpoint of `header`."""
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
        how = f"which {last.stopped} had stopped" if last.stopped else "which had been killed or had failed"
        self._say(
            f"goes on from epoch {place[0] + 1}, {place[1]} steps into it, of a launch {how} "
            f"{max(0, redone)} steps later, at {last.ended:%Y-%m-%d %H:%M:%S} UTC"
        )

    def _say(self, text: str) -> None:
        if self._world.rank == 0 and text not in self.notes:
            print(text, flush=True)
            self.notes.append(text)


def _check_same_launch(header: Header, replica: Replica, where: object) -> None:
    """Refuse a checkpoint of another launch; the number of ranks may be another, the global batch may not.

    Raises:
        UserError: naming what is another.
    """
    point, shards = replica.point, replica.data.shards
    here = replace(header, point=point, global_batch=shards.batch, steps_per_epoch=shards.full_steps)
    skipped = {"batch_per_rank", "global_batch", "checkpoint"}
    names = [one.name for one in fields(point.workload) if one.compare and one.name not in skipped]
    for there, own, compared in (
        (header.point.workload, point.workload, names),
        (header, here, ["global_batch", "steps_per_epoch"]),
        (header.point, point, ["seed", "data_id"]),
    ):
        for name in compared:
            old, new = getattr(there, name), getattr(own, name)
            if old != new:
                raise UserError(
                    f"the checkpoints in '{where}' are of another launch ({name.replace('_', ' ')} {old}, here {new}): "
                    "delete that folder, or choose another --record"
                )
