"""A launch that goes on when ranks fail: attempt after attempt, each from the last step that was finished.

The rows of a step are the same whoever trains them (`harness.datasets.shards`), so that those who remain train every
row of every epoch once: their steps are those of the undisturbed launch to rounding.
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
from harness.comm.core_ping import core_distance
from harness.comm.elastic_world import Member, MembershipChange, Team
from harness.comm.hang import HangWatch
from harness.comm.lost_ranks import find_loss
from harness.comm.world import World
from harness.schema.record import EpochRecord, FailedRank, LossReason, Stretch
from harness.schema.sweep import Point
from harness.schema.sync import Gradients
from harness.schema.workload import OPTIMIZERS
from harness.train.checkpointing import PartialEpoch, Progress
from harness.train.launch_record import Columns, TrainingOutcome, step_columns
from harness.train.replica import Replica, prepare_replica
from harness.train.shard_data import load
from harness.train.step import Epoch
from harness.train.training import TrainingStart, epoch_record, evaluate_all, time_is_up, train_epoch

T = TypeVar("T")


def check_workload(point: Point) -> None:
    """Check that what ranks know can be put together again when some fail.

    Raises:
        UserError: the workload has something that is each rank's own, or that is not on its processor.
    """
    workload, action = point.workload, f"ON_FAILURE={point.workload.on_failure}"
    if workload.sync != Gradients.form:
        raise UserError(f"{action} needs SYNC={Gradients.form}, not {workload.sync}: only then all ranks know all")
    if workload.optimizer not in OPTIMIZERS or workload.precision == "mixed_float16":
        raise UserError(f"{action} counts steps: it needs OPTIMIZER={'|'.join(OPTIMIZERS)} and no mixed_float16")
    if workload.sync_bn:
        raise UserError(f"{action} cannot be combined with SYNC_BN=1: a step has exchanges in its middle, leave it out")
    if point.layout.gpus_per_rank:
        raise UserError(f"{action} is for processors: leave GPUS out, or use ON_FAILURE=abort")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptState:
    """What a rank keeps of the training beyond an attempt: the variables of model and optimizer after `made` steps."""

    values: tuple[npt.NDArray[Any], ...]
    made: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureNotice:
    """That a rank failed: `when` (s, time.time), for what `reason`, and whether in the middle of a step.

    The reason is None on a rank that learned of the failure from others.
    """

    when: float
    reason: LossReason | None
    in_step: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureKnowledge:
    """What a process knows of failures, to be exchanged: those on record, and who has failed beyond them."""

    losses: tuple[FailedRank, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    failed: tuple[tuple[Member, FailureNotice], ...] = ()
    noticed: FailureNotice | None = None


@dataclass(kw_only=True)
class Survivor:
    """One process of the launch: its team, and what it has come to know.

    `steps` are the columns of the epochs whose steps today's ranks have made in one piece. `base`: the steps made when
    the current call of the compiled epoch began. `began` is when this attempt began to train, and after how many
    steps; those made until `entered` have taken `training_s`.
    """

    team: Team
    point: Point
    data_dir: Path | None
    report: Callable[[World, EpochRecord], None]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    replica: Replica | None = None
    kept: KeptState | None = None
    epochs: list[EpochRecord] = field(default_factory=list)
    steps: dict[int, Columns] = field(default_factory=dict)
    known: FailureKnowledge = field(default_factory=FailureKnowledge)
    base: int = 0
    in_step: bool = False
    began: tuple[datetime, int] | None = None
    training_s: float = 0.0
    entered: float = 0.0
    compile_s: float = 0.0
    evaluate_s: float = 0.0

    def run(self, finish: Callable[[World, TrainingOutcome], T]) -> T:
        """Train to the end with whoever is left, and return what `finish` returns.

        Raises:
            RunError: what the ranks know of the weights does not agree.
        """
        while True:
            formed = self.team.form(self.known)
            if formed is not None:
                self._adopt(*formed)
                error, result = None, None
                try:
                    result = self._attempt(finish)
                except Exception as failure:
                    loss = find_loss(failure)
                    # What is read from a rank that dies while it sends may be anything, and fail in any way.
                    unrelated = isinstance(failure, (RunError, SharedError)) or not self.team.failed()
                    if loss is None and unrelated:
                        raise
                    error = failure
                    self._notice(loss.reason if loss else None)
                if self.team.ended(error) and result is not None:
                    return result
            self._notice(None)  # those that met no error learn of it from the others
            self._keep_state()
            self.team.shrink()

    def _notice(self, reason: LossReason | None) -> None:
        if self.known.noticed is None:
            notice = FailureNotice(when=time.time(), reason=reason, in_step=self.in_step)
            self.known = replace(self.known, noticed=notice)

    def _adopt(self, change: MembershipChange, known: list[FailureKnowledge]) -> None:
        """Agree on who has failed, and leave the slots that no longer exist out of what was recorded.

        Some may know of failures that were recorded, or only noticed, in an attempt that failed on others. What a
        failed rank knew of its steps is gone: of those epochs the others' columns do not cover all rows.
        """
        self.team.clean_up(change.failed)
        losses = max((each.losses for each in known), key=len)
        notices = [each.noticed for each in known if each.noticed]
        first = min(notices, key=lambda notice: (notice.reason is None, notice.when), default=None)
        failed = {(who.host, who.pid): (who, notice) for each in known for who, notice in each.failed}
        failed |= {(who.host, who.pid): (who, first) for who in change.failed if first}
        for loss in losses:
            failed.pop((loss.host, loss.pid), None)
        stretches = max((each.stretches for each in known), key=lambda made: sum(stretch.steps for stretch in made))
        self.known = FailureKnowledge(losses=losses, stretches=stretches, failed=tuple(failed.values()))
        if change.failed:
            self.steps = {}
        self.epochs = [
            replace(
                epoch,
                seconds=tuple(epoch.seconds[slot] for slot in change.old_slots),
                sync_seconds=tuple(epoch.sync_seconds[slot] for slot in change.old_slots),
                input_seconds=tuple(epoch.input_seconds[slot] for slot in change.old_slots),
            )
            for epoch in self.epochs
        ]

    def _attempt(self, finish: Callable[[World, TrainingOutcome], T]) -> T:
        """Train to the end with this attempt's ranks."""
        assert self.team.world is not None
        watch = HangWatch(self.team.world, self.team.folder, self.team.silence_s)
        world = replace(self.team.world, comm=watch.watched(self.team.world.comm))
        try:
            self.replica = replica = self._prepare(world)
            watch.opened(replica.reduction)
            watch.start()
            start = TrainingStart.now(world)
            workload = self.point.workload
            while len(self.epochs) < workload.epochs and not time_is_up(self.epochs, workload.seconds):
                self._train_epoch(replica, len(self.epochs))
            outcome = start.conclude(
                replica,
                core_distance(world),
                started=self.started,
                epochs=tuple(self.epochs),
                steps=self._common_steps(world),
                compile_s=self.compile_s,
                evaluate_s=self.evaluate_s,
                losses=self.known.losses,
                stretches=self._stretches(replica, _made_steps(replica)) if self.known.losses else (),
            )
            return finish(world, outcome)
        finally:
            watch.stop()

    def _prepare(self, world: World) -> Replica:
        """Divide the rows again, build the replica, and give it the state of the rank that has made most steps."""
        begin = time.perf_counter()
        data = load(world, self.point, self.data_dir, tuple(member.share for member in self.team.trainers))
        if data.files is not None:
            raise SharedError(UserError("ON_FAILURE needs rows held in memory: use INPUT=resident or ON_FAILURE=abort"))
        replica = prepare_replica(world, self.point, data, warm=self.team.complete)
        made = world.comm.allgather(self.kept.made if self.kept else None)
        found = [steps for steps in made if steps is not None]
        if found:
            if max(found) - min(found) > 1:
                raise RunError(
                    f"survivors have made {min(found)} to {max(found)} steps: they cannot be brought together"
                )
            source = made.index(max(found))
            self._set_state(world, replica, source)
            # The epochs that all survivors have recorded: one of them may be ahead by an evaluation.
            recorded = world.comm.allgather(len(self.epochs) if self.kept else None)
            common = min(count for count in recorded if count is not None)
            self.epochs = world.comm.bcast(self.epochs[:common], root=source)
        self.compile_s += time.perf_counter() - begin
        now = world.comm.bcast(time.time())
        self.team.confirm()
        self._record_failures(replica, now)
        self.began, self.training_s = (datetime.now(UTC), _made_steps(replica)), 0.0
        return replace(replica, epoch=self._noting(replica))

    def _noting(self, replica: Replica) -> Epoch:
        """Return the replica's epoch that notes when it is under way, and after which step it began."""

        def train(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
            self.base, self.in_step, self.entered = _made_steps(replica), True, time.perf_counter()
            losses = replica.epoch(order, partial, salt, last=last)
            self.training_s += time.perf_counter() - self.entered
            self.in_step = False
            return losses

        return train

    def _set_state(self, world: World, replica: Replica, source: int) -> None:
        """Set every variable to what rank `source` has, and prove that ranks which had made as many steps had the same.

        Raises:
            RunError: one of them had not.
        """
        own = self.kept
        made = world.comm.bcast(own.made if own else 0, root=source)
        rank_owned = {id(variable) for variable in replica.state.statistics}  # batch normalisation's: each rank's own
        for number, variable in enumerate(replica.variables):
            kept = own.values[number] if own else np.array(variable.numpy(), order="C")
            value = kept.copy()
            world.comm.Bcast(value, root=source)
            if own and own.made == made and id(variable) in rank_owned:
                value = kept
            elif own and own.made == made and kept.tobytes() != value.tobytes():
                raise RunError(
                    f"after {made} steps rank {world.rank} has other values of '{variable.path}' than rank {source}: "
                    "the launch ends rather than train on either"
                )
            variable.assign(value)

    def _record_failures(self, replica: Replica, now: float) -> None:
        """Record the failures that this attempt has overcome (`now`, time.time of one rank); the same on all ranks."""
        epoch, step = divmod(_made_steps(replica), replica.data.shards.steps(self.point.workload.drop_remainder))
        new = tuple(
            FailedRank(
                rank=member.slot,
                host=member.host,
                pid=member.pid,
                noticed=datetime.fromtimestamp(notice.when, UTC),
                reason=notice.reason,
                epoch=epoch,
                step=step,
                redone=int(notice.in_step),
                recovery_s=now - notice.when,
                ranks=replica.world.size,
            )
            for member, notice in self.known.failed
        )
        for loss in new if replica.world.rank == 0 else ():
            print(f"harness: {loss}", flush=True)
        self.known = replace(self.known, losses=self.known.losses + new, failed=())

    def _train_epoch(self, replica: Replica, number: int) -> None:
        """Train what is left of an epoch and evaluate."""
        total = replica.data.shards.steps(self.point.workload.drop_remainder)
        first = _made_steps(replica) - number * total
        losses, columns, *times = train_epoch(replica, number, Progress(part=PartialEpoch(before=first)))
        if first == 0:
            self.steps[number] = columns
        tick = time.perf_counter()
        scores = evaluate_all(replica)
        self.evaluate_s += time.perf_counter() - tick
        record = epoch_record(replica, number, losses, columns, (times[0], times[1]), scores)
        self.team.confirm()
        self.epochs.append(record if first == 0 else replace(record, steps=total, train_loss=None))
        self.report(replica.world, self.epochs[-1])

    def _keep_state(self) -> None:
        """Keep what this rank has come to know.

        Interrupted inside a step, the weights are those of the last allreduce: the next one needed gradients of all of
        them. TensorFlow counts the step at any time between its read of the count and the next.

        Raises:
            RunError: exchanges and count are further apart than that.
        """
        replica, self.replica = self.replica, None
        if replica is None:
            return
        made = _made_steps(replica)
        if self.in_step and replica.world.size > 1:
            calls = replica.reduction.take_calls()
            made = self.base + len(calls)
            self.training_s += float(calls[-1, 1]) - self.entered if len(calls) else 0.0
            if abs(_made_steps(replica) - made) > 1:
                raise RunError(
                    f"rank {replica.world.rank} has made {made} sums and counted {_made_steps(replica)} steps: the "
                    "launch ends rather than train on what may be half a step"
                )
            replica.state.optimizer.iterations.assign(made)
        self.known = replace(self.known, stretches=self._stretches(replica, made))
        self.in_step = False
        values = tuple(np.array(variable.numpy(), order="C") for variable in replica.variables)
        self.kept = KeptState(values=values, made=made)

    def _stretches(self, replica: Replica, made: int) -> tuple[Stretch, ...]:
        """Return what was trained between failures, the last of it up to step `made`; nothing where no step was."""
        assert self.began is not None
        started, first = self.began
        if made == first:
            return self.known.stretches
        noticed = self.known.noticed
        last = Stretch(
            ranks=replica.world.size,
            first=first,
            steps=made - first,
            started=started,
            ended=datetime.fromtimestamp(noticed.when, UTC) if noticed else datetime.now(UTC),
            training_s=self.training_s,
        )
        return (*self.known.stretches, last)

    def _common_steps(self, world: World) -> tuple[Columns, ...]:
        """Return this rank's columns of the epochs that all of today's ranks have made in one piece."""
        whole = set.intersection(*map(set, world.comm.allgather(set(self.steps))))
        for number in whole:
            self.steps[number]["rank"][:] = world.rank
        empty = step_columns(
            rank=world.rank, epoch=0, begin=0.0, losses=np.zeros(0, np.float32), calls=np.zeros((0, 2)), period=0
        )
        return tuple(self.steps[number] for number in sorted(whole)) or (empty,)


def _made_steps(replica: Replica) -> int:
    """Return how many steps the weights have made since training began."""
    return int(replica.state.optimizer.iterations.numpy())
