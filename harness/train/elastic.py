"""A launch that goes on when ranks are lost: attempt after attempt, each from the last step that was finished.

The rows of a step are the same whoever trains them (`harness.datasets.shards`), so that those who remain train every
row of every epoch once: their steps are those of the undisturbed launch to rounding, and to the bit where spares take
the lost ranks' seats.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import RunError, SharedError, UserError
from harness.comm.elastic_world import Member, MembershipChange, Team, lost, sign_of
from harness.comm.hang import HangWatch
from harness.comm.world import World
from harness.schema.record import EpochRecord, LossRecord, Stretch
from harness.schema.sweep import Point
from harness.schema.sync import Gradients
from harness.schema.workload import OPTIMIZERS
from harness.train.checkpointing import Progress
from harness.train.record import Columns, step_columns
from harness.train.replica import Replica, prepare_replica
from harness.train.resume import PartialEpoch
from harness.train.run import TrainingOutcome, TrainingStart, epoch_record, evaluate_all, time_is_up, train_epoch
from harness.train.shard_data import load
from harness.train.step import Epoch

T = TypeVar("T")


def check_workload(point: Point) -> None:
    """Check that what ranks know can be put together again when some are lost.

    Raises:
        UserError: the workload has something that is each rank's own, or that is not on its processor.
    """
    workload, action = point.workload, f"ON_FAILURE={point.workload.on_failure}"
    if workload.sync != Gradients.form:
        raise UserError(f"{action} needs SYNC={Gradients.form}, not {workload.sync}: only then all ranks know all")
    if workload.optimizer not in OPTIMIZERS or workload.precision == "mixed_float16":
        raise UserError(f"{action} counts steps: it needs OPTIMIZER={'|'.join(OPTIMIZERS)} and no mixed_float16")
    if workload.sync_bn:
        raise UserError(f"{action} does not go with SYNC_BN=1: a step has exchanges in its middle, leave it out")
    if point.layout.gpus_per_rank:
        raise UserError(f"{action} is for processors: leave GPUS out, or use ON_FAILURE=abort")


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What a rank knows of the training beyond an attempt: the variables of model and optimizer after `made` steps."""

    values: tuple[npt.NDArray[Any], ...]
    made: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LossNotice:
    """That somebody is lost: `when` (s, time.time), `how`, and whether in the middle of a step."""

    when: float
    how: str
    in_step: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RankNews:
    """What a process knows of losses, for all to hear: those that are on record, and who is lost beyond them."""

    losses: tuple[LossRecord, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    gone: tuple[tuple[Member, LossNotice], ...] = ()
    noticed: LossNotice | None = None


@dataclass(kw_only=True)
class Survivor:
    """One process of the launch: its team, and what it has come to know.

    `steps` are the columns of the epochs whose steps today's ranks have made in one piece. `early`: it was no
    spare at first. `began` is when this attempt began to train, and behind how many steps; those made until
    `entered` have taken `training_s`.
    """

    team: Team
    point: Point
    data_dir: Path | None
    tell: Callable[[World, EpochRecord], None]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    replica: Replica | None = None
    past: Past | None = None
    epochs: list[EpochRecord] = field(default_factory=list)
    steps: dict[int, Columns] = field(default_factory=dict)
    news: RankNews = field(default_factory=RankNews)
    early: bool = False
    base: int = 0
    in_step: bool = False
    began: tuple[datetime, int] | None = None
    training_s: float = 0.0
    entered: float = 0.0
    compile_s: float = 0.0
    evaluate_s: float = 0.0

    def run(self, finish: Callable[[World, TrainingOutcome], T]) -> T | None:
        """Train to the end with whoever is left, and return what `finish` returns; None on a spare that is left over.

        Raises:
            RunError: what the ranks know of the weights does not agree.
        """
        self.early = self.team.own.seat is not None
        while True:
            formed = self.team.form(self.news)
            if formed is not None:
                self._follow(*formed)
                error, result = None, None
                try:
                    result = self._attempt(finish)
                except Exception as found:
                    # What is read from a rank that dies while it sends may be anything, and fail in any way.
                    if not lost(found) and (isinstance(found, (RunError, SharedError)) or not self.team.broken()):
                        raise
                    error = found
                    self._notice(sign_of(error))
                if self.team.ended(error):
                    return result
            self._notice("")  # those that met no error hear of it from the others
            self._halt()
            self.team.shrink()

    def _notice(self, how: str) -> None:
        if self.news.noticed is None:
            self.news = replace(self.news, noticed=LossNotice(when=time.time(), how=how, in_step=self.in_step))

    def _follow(self, change: MembershipChange, news: list[RankNews]) -> None:
        """Take note of who is gone, alike on all, and leave the seats that are no more out of what was recorded.

        Some may know of losses that were noted, or only noticed, in an attempt that failed on others. What a lost rank
        knew of its steps is lost: of those epochs the others' say nothing of all rows.
        """
        self.team.sweep_up(change.lost)
        losses = max((known.losses for known in news), key=len)
        notices = [known.noticed for known in news if known.noticed]
        first = min(notices, key=lambda notice: (not notice.how, notice.when), default=None)
        gone = {(who.host, who.pid): (who, notice) for known in news for who, notice in known.gone}
        gone |= {(who.host, who.pid): (who, first) for who in change.lost if first}
        for loss in losses:
            gone.pop((loss.host, loss.pid), None)
        stretches = max((known.stretches for known in news), key=lambda made: sum(each.steps for each in made))
        self.news = RankNews(losses=losses, stretches=stretches, gone=tuple(gone.values()))
        if any(member.seat is not None for member in change.lost):
            self.steps = {}
        self.epochs = [
            replace(
                epoch,
                seconds=tuple(epoch.seconds[seat] for seat in change.kept),
                sync_seconds=tuple(epoch.sync_seconds[seat] for seat in change.kept),
                input_seconds=tuple(epoch.input_seconds[seat] for seat in change.kept),
            )
            for epoch in self.epochs
        ]

    def _attempt(self, finish: Callable[[World, TrainingOutcome], T]) -> T | None:
        world = self.team.world
        if world is None:
            return None
        watch = HangWatch(world, self.team.folder, self.team.silence_s)
        try:
            return self._train(replace(world, comm=watch.watched(world.comm)), watch, finish)
        finally:
            watch.stop()

    def _train(self, world: World, watch: HangWatch, finish: Callable[[World, TrainingOutcome], T]) -> T:
        replica = self._prepare(world)
        watch.opened(replica.reduction)
        watch.start()
        begun = TrainingStart.take_down(world)
        workload = self.point.workload
        while len(self.epochs) < workload.epochs and not time_is_up(self.epochs, workload.seconds):
            self._train_epoch(replica, len(self.epochs))
        outcome = begun.conclude(
            replica,
            started=self.started,
            epochs=tuple(self.epochs),
            steps=self._common_steps(world),
            compile_s=self.compile_s,
            evaluate_s=self.evaluate_s,
            losses=self.news.losses,
            stretches=self._stretches(replica, made_steps(replica)) if self.news.losses else (),
        )
        return finish(world, outcome)

    def _prepare(self, world: World) -> Replica:
        """Cut the rows anew, build the replica, and give it what the one that knows most has."""
        begin = time.perf_counter()
        data = load(world, self.point, self.data_dir, tuple(member.share for member in self.team.seated))
        if data.files is not None:
            raise SharedError(UserError("ON_FAILURE needs rows held in memory: use INPUT=resident or ON_FAILURE=abort"))
        replica = prepare_replica(world, self.point, data, warm=self.team.whole)
        known = world.comm.allgather(self.past.made if self.past else None)
        anew = not any(world.comm.allgather(self.early or self.past is not None))
        found = [made for made in known if made is not None]
        if found:
            if max(found) - min(found) > 1:
                raise RunError(
                    f"survivors have made {min(found)} to {max(found)} steps: they cannot be brought together"
                )
            source = known.index(max(found))
            self._put(world, replica, source)
            self._share_past(world, source)
        self.compile_s += time.perf_counter() - begin
        now = world.comm.bcast(time.time())
        self.team.confirm()
        self._note(replica, now, anew=anew)
        self.began, self.training_s = (datetime.now(UTC), made_steps(replica)), 0.0
        self.replica = replace(replica, epoch=self._noticing(replica))
        return self.replica

    def _noticing(self, replica: Replica) -> Epoch:
        """Return the replica's epoch that notes when it is under way, and after which step it began."""

        def train(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
            self.base, self.in_step, self.entered = made_steps(replica), True, time.perf_counter()
            losses = replica.epoch(order, partial, salt, last=last)
            self.training_s += time.perf_counter() - self.entered
            self.in_step = False
            return losses

        return train

    def _put(self, world: World, replica: Replica, source: int) -> None:
        """Set every variable to what rank `source` has, and prove that ranks which had made as many steps had the same.

        Raises:
            RunError: one of them had not.
        """
        state, own = replica.state, self.past
        made = world.comm.bcast(own.made if own else 0, root=source)
        apart = {id(variable) for variable in state.statistics}  # batch normalisation's: each rank's own
        for number, variable in enumerate([*state.model.variables, *state.optimizer.variables]):
            kept = own.values[number] if own else np.array(variable.numpy(), order="C")
            value = kept.copy()
            world.comm.Bcast(value, root=source)
            if own and own.made == made and id(variable) not in apart and kept.tobytes() != value.tobytes():
                raise RunError(
                    f"after {made} steps rank {world.rank} has other values of '{variable.path}' than rank {source}: "
                    "the launch ends rather than train on either"
                )
            variable.assign(kept if own and own.made == made and id(variable) in apart else value)

    def _share_past(self, world: World, source: int) -> None:
        """Know the epochs that all survivors have recorded; one of them may be ahead by an evaluation."""
        recorded = world.comm.allgather(len(self.epochs) if self.past else None)
        common = min(count for count in recorded if count is not None)
        self.epochs = world.comm.bcast(self.epochs[:common], root=source)

    def _note(self, replica: Replica, now: float, *, anew: bool) -> None:
        """Write down the losses that this attempt has overcome (`now`, time.time of one rank); alike on all ranks."""
        epoch, step = divmod(made_steps(replica), replica.data.shards.steps(self.point.workload.drop_remainder))
        world = replica.world
        new = tuple(
            LossRecord(
                rank=member.seat, host=member.host, pid=member.pid, noticed=datetime.fromtimestamp(notice.when, UTC),
                how=notice.how, epoch=epoch, step=step, redone=int(notice.in_step), recovery_s=now - notice.when,
                ranks=world.size, anew=anew,
            )
            for member, notice in self.news.gone
        )  # fmt: skip
        for loss in new if world.rank == 0 else ():
            print(f"harness: {loss}", flush=True)
        self.news = replace(self.news, losses=self.news.losses + new, gone=())

    def _train_epoch(self, replica: Replica, number: int) -> None:
        """Train what is left of an epoch and evaluate."""
        total = replica.data.shards.steps(self.point.workload.drop_remainder)
        first = made_steps(replica) - number * total
        losses, columns, *times = train_epoch(replica, number, progress=Progress(part=PartialEpoch(before=first)))
        if first == 0:
            self.steps[number] = columns
        tick = time.perf_counter()
        scores = evaluate_all(replica)
        self.evaluate_s += time.perf_counter() - tick
        record = epoch_record(replica, number, losses, columns, (times[0], times[1]), scores)
        self.team.confirm()
        self.epochs.append(record if first == 0 else replace(record, steps=total, train_loss=None))
        self.tell(replica.world, self.epochs[-1])

    def _halt(self) -> None:
        """Keep what this rank has come to know.

        Interrupted inside a step, the weights are those of the last sum: the next one needed gradients of all of them.
        TensorFlow counts the step at any time between its read of the count and the next.

        Raises:
            RunError: sums and count are further apart than that.
        """
        replica, self.replica = self.replica, None
        if replica is None:
            return
        state, made = replica.state, made_steps(replica)
        if self.in_step and replica.world.size > 1:
            calls = replica.reduction.take_calls()
            made = self.base + len(calls)
            self.training_s += float(calls[-1, 1]) - self.entered if len(calls) else 0.0
            if abs(made_steps(replica) - made) > 1:
                raise RunError(
                    f"rank {replica.world.rank} has made {made} sums and counted {made_steps(replica)} steps: the "
                    "launch ends rather than train on what may be half a step"
                )
            state.optimizer.iterations.assign(made)
        self.news = replace(self.news, stretches=self._stretches(replica, made))
        self.in_step = False
        variables = [*state.model.variables, *state.optimizer.variables]
        self.past = Past(values=tuple(np.array(each.numpy(), order="C") for each in variables), made=made)

    def _stretches(self, replica: Replica, made: int) -> tuple[Stretch, ...]:
        """Return what was trained between losses, the last of it up to step `made`; nothing where no step was made."""
        assert self.began is not None
        started, first = self.began
        if made == first:
            return self.news.stretches
        noticed = self.news.noticed
        last = Stretch(
            ranks=replica.world.size, first=first, steps=made - first, started=started,
            ended=datetime.fromtimestamp(noticed.when, UTC) if noticed else datetime.now(UTC),
            training_s=self.training_s,
        )  # fmt: skip
        return (*self.news.stretches, last)

    def _common_steps(self, world: World) -> tuple[Columns, ...]:
        """Return this rank's columns of the epochs that all of today's ranks have made in one piece."""
        whole = set.intersection(*map(set, world.comm.allgather(set(self.steps))))
        for number in whole:
            self.steps[number]["rank"][:] = world.rank
        empty = step_columns(
            rank=world.rank, epoch=0, begin=0.0, losses=np.zeros(0, np.float32), calls=np.zeros((0, 2)), period=0
        )
        return tuple(self.steps[number] for number in sorted(whole)) or (empty,)


def made_steps(replica: Replica) -> int:
    """Return how many steps the weights have made since training began."""
    return int(replica.state.optimizer.iterations.numpy())
