"""A launch that goes on when ranks fail: attempt after attempt, each from the last step that was finished.

The rows of a step are the same whoever trains them (`harness.datasets.shards`), so that those who remain train every
row of every epoch once: their steps are those of the undisturbed launch to rounding.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import RunError, SharedError, UserError
from harness.base.setting_names import setting
from harness.comm.core_ping import core_distance
from harness.comm.elastic_world import Member, MembershipChange, Team
from harness.comm.hang import HangWatch
from harness.comm.lost_ranks import find_loss
from harness.comm.world import World
from harness.schema.point import Point
from harness.schema.record import EpochRecord, FailedRank, LossReason, Stretch
from harness.schema.sync_policies import Gradients
from harness.schema.workload import OPTIMIZERS
from harness.train.checkpointing import PartialEpoch, Progress
from harness.train.epoch_loop import Epoch
from harness.train.launch_record import TrainingOutcome
from harness.train.replica import Replica, prepare_replica
from harness.train.shard_data import load_shard
from harness.train.step_table import Columns, step_columns
from harness.train.training import TrainingStart, epoch_record, evaluate_all, time_is_up, train_epoch

# How far an attempt has come while it trains: its steps, their seconds, and whether a step is under way.


def count_steps(replica: Replica) -> int:
    """Return how many steps the weights have made since training began."""
    return int(replica.state.optimizer.iterations.numpy())


@dataclass(kw_only=True, slots=True)
class AttemptClock:
    """The steps of one attempt, from its begin at `started` after `first_step` steps of the launch.

    `in_step`: a call of the compiled epoch is under way, which began at `entered` (s, perf_counter) after `call_first`
    steps of the launch. `training_s` are the seconds of all calls that have ended.
    """

    started: datetime
    first_step: int
    training_s: float = 0.0
    in_step: bool = False
    entered: float = 0.0
    call_first: int = 0

    def watched(self, replica: Replica) -> Epoch:
        """Return the replica's epoch, whose calls this clock counts."""

        def train(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
            self.call_first = count_steps(replica)
            self.in_step = True
            self.entered = time.perf_counter()
            losses = replica.epoch(order, partial, salt, last=last)
            self.training_s += time.perf_counter() - self.entered
            self.in_step = False
            return losses

        return train

    def interrupted(self, calls: npt.NDArray[np.float64]) -> int:
        """End a call that a failure has interrupted, after the sums `calls` (`Reduction.take_calls`).

        Returns:
            the steps that the launch has made then.
        """
        if len(calls):
            self.training_s += float(calls[-1, 1]) - self.entered
        return self.call_first + len(calls)

    def stretch(self, ranks: int, steps: int, ended: float | None) -> Stretch | None:
        """Return what `ranks` ranks trained up to step `steps` of the launch, None for nothing.

        `ended` (s, time.time) is when that ended, None for now.
        """
        if steps == self.first_step:
            return None
        return Stretch(
            ranks=ranks,
            first=self.first_step,
            steps=steps - self.first_step,
            started=self.started,
            ended=datetime.now(UTC) if ended is None else datetime.fromtimestamp(ended, UTC),
            training_s=self.training_s,
        )


# What the processes of a launch know of failed ranks, and how it becomes the same on all of them.


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
    """What a process knows of failures, to be exchanged.

    `losses` and `stretches` are on record; `failed` are members that have failed since, with the first notice of each;
    `notice` is this process's own of the attempt that has just failed.
    """

    losses: tuple[FailedRank, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    failed: tuple[tuple[Member, FailureNotice], ...] = ()
    notice: FailureNotice | None = None

    def noticing(self, reason: LossReason | None, *, in_step: bool) -> "FailureKnowledge":
        """Return this with a notice of now; as it is where there is one already."""
        if self.notice is not None:
            return self
        return replace(self, notice=FailureNotice(when=time.time(), reason=reason, in_step=in_step))


def merge_knowledge(change: MembershipChange, all_knowledge: Sequence[FailureKnowledge]) -> FailureKnowledge:
    """Return what all members together know of failures.

    Some may know of failures that were recorded, or only noticed, in an attempt that failed on others.
    """
    losses = max((knowledge.losses for knowledge in all_knowledge), key=len)
    stretches = max((knowledge.stretches for knowledge in all_knowledge), key=_steps_of)
    notices = [knowledge.notice for knowledge in all_knowledge if knowledge.notice]
    first = min(notices, key=lambda notice: (notice.reason is None, notice.when), default=None)
    failed: dict[tuple[str, int], tuple[Member, FailureNotice]] = {}
    for knowledge in all_knowledge:
        for member, notice in knowledge.failed:
            failed[member.host, member.pid] = (member, notice)
    for member in change.failed:
        if first:
            failed[member.host, member.pid] = (member, first)
    for loss in losses:
        failed.pop((loss.host, loss.pid), None)
    return FailureKnowledge(losses=losses, stretches=stretches, failed=tuple(failed.values()))


def _steps_of(stretches: Sequence[Stretch]) -> int:
    return sum(stretch.steps for stretch in stretches)


T = TypeVar("T")


def check_workload(point: Point) -> None:
    """Check that what ranks know can be put together again when some fail.

    Raises:
        UserError: the workload has something that is each rank's own, or that is not on its processor.
    """
    workload = point.workload
    action = setting("on_failure", workload.on_failure)
    if workload.sync != Gradients.form:
        raise UserError(
            f"{action} needs {setting('sync', Gradients.form)}, not {workload.sync}: only then all ranks know all"
        )
    if workload.optimizer not in OPTIMIZERS or workload.precision == "mixed_float16":
        kinds = " or ".join(OPTIMIZERS)
        raise UserError(f"{action} counts steps: it needs {setting('optimizer')} {kinds} and no mixed_float16")
    if workload.sync_bn:
        raise UserError(
            f"{action} cannot be combined with {setting('sync_bn', True)}: a step has exchanges in its middle, "
            "leave it "
            "out"
        )
    if point.layout.gpus_per_rank:
        raise UserError(
            f"{action} is for processors: leave out {setting('gpus')}, or use {setting('on_failure', 'abort')}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedState:
    """The variables of model and optimizer after `steps` steps, as a rank saves them when an attempt has failed."""

    values: tuple[npt.NDArray[Any], ...]
    steps: int


@dataclass(kw_only=True, slots=True)
class FinishedEpochs:
    """The launch's records of whole epochs, and `columns` of those whose steps today's ranks have made in one piece."""

    records: list[EpochRecord] = field(default_factory=list)
    columns: dict[int, Columns] = field(default_factory=dict)
    compile_s: float = 0.0
    evaluate_s: float = 0.0

    def leave_out_failed(self, change: MembershipChange) -> None:
        """Keep of the records what ranks know that still train.

        What a failed rank knew of its steps is gone: of those epochs the others' columns do not cover all rows.
        """
        if change.failed:
            self.columns = {}
        self.records = [_of_slots(record, change.old_slots) for record in self.records]


@dataclass(kw_only=True)
class Survivor:
    """One process of the launch: its team, what it trains, and what it has come to know."""

    team: Team
    point: Point
    data_dir: Path | None
    report: Callable[[World, EpochRecord], None]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    finished: FinishedEpochs = field(default_factory=FinishedEpochs)
    knowledge: FailureKnowledge = field(default_factory=FailureKnowledge)
    saved: SavedState | None = None
    replica: Replica | None = None
    clock: AttemptClock | None = None

    def run(self, finish: Callable[[World, TrainingOutcome], T]) -> T:
        """Train to the end with whoever is left, and return what `finish` returns.

        Raises:
            RunError: what the ranks know of the weights does not agree.
        """
        while True:
            formed = self.team.form(self.knowledge)
            if formed is not None:
                change, all_knowledge = formed
                self._adopt(change, all_knowledge)
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
            self._save_state()
            self.team.shrink()

    def _notice(self, reason: LossReason | None) -> None:
        in_step = self.clock is not None and self.clock.in_step
        self.knowledge = self.knowledge.noticing(reason, in_step=in_step)

    def _adopt(self, change: MembershipChange, all_knowledge: Sequence[FailureKnowledge]) -> None:
        """Agree on who has failed, and leave the slots that no longer exist out of what was recorded."""
        self.team.clean_up(change.failed)
        self.knowledge = merge_knowledge(change, all_knowledge)
        self.finished.leave_out_failed(change)

    def _attempt(self, finish: Callable[[World, TrainingOutcome], T]) -> T:
        """Train to the end with this attempt's ranks."""
        assert self.team.world is not None
        watch = HangWatch(self.team.world, self.team.folder, self.team.silence_s)
        world = replace(self.team.world, comm=watch.watched(self.team.world.comm))
        try:
            self.replica = replica = self._prepare(world)
            watch.opened(replica.reduction)
            watch.start()
            start = TrainingStart.now(world, replica.gpu)
            workload = self.point.workload
            records = self.finished.records
            while len(records) < workload.epochs and not time_is_up(records, workload.seconds):
                self._train_epoch(replica, len(records))
            outcome = start.conclude(
                replica,
                core_distance(world),
                started=self.started,
                epochs=tuple(records),
                steps=self._common_columns(world),
                compile_s=self.finished.compile_s,
                evaluate_s=self.finished.evaluate_s,
                losses=self.knowledge.losses,
                stretches=self._stretches(replica, count_steps(replica)) if self.knowledge.losses else (),
            )
            return finish(world, outcome)
        finally:
            watch.stop()

    def _prepare(self, world: World) -> Replica:
        """Divide the rows again, build the replica, and give it the state of the rank that has made most steps."""
        begin = time.perf_counter()
        data = load_shard(world, self.point, self.data_dir)
        if data.files is not None:
            raise SharedError(
                UserError(
                    f"{setting('on_failure')} needs rows held in memory: use {setting('input', 'resident')} or "
                    f"{setting('on_failure', 'abort')}"
                )
            )
        replica = prepare_replica(world, self.point, data, warm=self.team.complete)
        self._share_state(world, replica)
        self.finished.compile_s += time.perf_counter() - begin
        now = world.comm.bcast(time.time())
        self.team.confirm()
        self._record_failures(replica, now)
        self.clock = AttemptClock(started=datetime.now(UTC), first_step=count_steps(replica))
        return replace(replica, epoch=self.clock.watched(replica))

    def _share_state(self, world: World, replica: Replica) -> None:
        """Give all ranks the state and the records of the one that has made most steps, where one has saved any.

        Raises:
            RunError: the ranks' states cannot be brought together.
        """
        steps = world.comm.allgather(self.saved.steps if self.saved else None)
        saved_steps = [count for count in steps if count is not None]
        if not saved_steps:
            return
        fewest = min(saved_steps)
        most = max(saved_steps)
        if most - fewest > 1:
            raise RunError(f"survivors have made {fewest} to {most} steps: they cannot be brought together")
        source = steps.index(most)
        for number, variable in enumerate(replica.variables):
            self._set_variable(world, replica, number, variable, source=source, steps=most)
        # The epochs that all survivors have recorded: one of them may be ahead by an evaluation.
        recorded = world.comm.allgather(len(self.finished.records) if self.saved else None)
        common = min(count for count in recorded if count is not None)
        self.finished.records = world.comm.bcast(self.finished.records[:common], root=source)

    def _set_variable(
        self, world: World, replica: Replica, number: int, variable: keras.Variable, *, source: int, steps: int
    ) -> None:
        """Set a variable to what rank `source` has, and prove that ranks with as many `steps` have the same.

        Raises:
            RunError: one of them has not.
        """
        saved = self.saved
        current = saved.values[number] if saved else np.array(variable.numpy(), order="C")
        value = current.copy()
        world.comm.Bcast(value, root=source)
        if saved and saved.steps == steps:
            if any(variable is statistic for statistic in replica.state.statistics):
                value = current  # batch normalisation's statistics are each rank's own
            elif current.tobytes() != value.tobytes():
                raise RunError(
                    f"after {steps} steps rank {world.rank} has other values of '{variable.path}' than rank {source}: "
                    "the launch ends rather than train on either"
                )
        variable.assign(value)

    def _record_failures(self, replica: Replica, now: float) -> None:
        """Record the failures that this attempt has overcome (`now`, time.time of one rank); the same on all ranks."""
        steps_per_epoch = replica.data.shards.steps(self.point.workload.drop_remainder)
        epoch, step = divmod(count_steps(replica), steps_per_epoch)
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
            for member, notice in self.knowledge.failed
        )
        if replica.world.rank == 0:
            for loss in new:
                print(f"harness: {loss}", flush=True)
        self.knowledge = replace(self.knowledge, losses=self.knowledge.losses + new, failed=())

    def _train_epoch(self, replica: Replica, number: int) -> None:
        """Train what is left of an epoch and evaluate."""
        total = replica.data.shards.steps(self.point.workload.drop_remainder)
        first = count_steps(replica) - number * total
        trained = train_epoch(replica, number, Progress(part=PartialEpoch(before=first)))
        if first == 0:
            self.finished.columns[number] = trained.columns
        tick = time.perf_counter()
        scores = evaluate_all(replica)
        self.finished.evaluate_s += time.perf_counter() - tick
        record = epoch_record(replica, number, trained, scores)
        if first:  # the losses of the steps before are gone
            record = replace(record, steps=total, train_loss=None)
        self.team.confirm()
        self.finished.records.append(record)
        self.report(replica.world, record)

    def _save_state(self) -> None:
        """Save the state of this rank after its last finished step.

        Interrupted inside a step, the weights are those of the last allreduce: the next one needed gradients of all of
        them. TensorFlow counts the step at any time between its read of the count and the next.

        Raises:
            RunError: exchanges and count are further apart than that.
        """
        replica = self.replica
        self.replica = None
        if replica is None:
            return
        assert self.clock is not None
        counted = count_steps(replica)
        steps = counted
        if self.clock.in_step and replica.world.size > 1:
            steps = self.clock.interrupted(replica.reduction.take_calls())
            if abs(counted - steps) > 1:
                raise RunError(
                    f"rank {replica.world.rank} has made {steps} sums and counted {counted} steps: the launch ends "
                    "rather than train on what may be half a step"
                )
            replica.state.optimizer.iterations.assign(steps)
        self.knowledge = replace(self.knowledge, stretches=self._stretches(replica, steps))
        self.clock.in_step = False
        values = tuple(np.array(variable.numpy(), order="C") for variable in replica.variables)
        self.saved = SavedState(values=values, steps=steps)

    def _stretches(self, replica: Replica, steps: int) -> tuple[Stretch, ...]:
        """Return what was trained between failures, the last of it up to step `steps`."""
        assert self.clock is not None
        notice = self.knowledge.notice
        last = self.clock.stretch(replica.world.size, steps, notice.when if notice else None)
        return (*self.knowledge.stretches, last) if last else self.knowledge.stretches

    def _common_columns(self, world: World) -> tuple[Columns, ...]:
        """Return this rank's columns of the epochs that all of today's ranks have made in one piece."""
        columns = self.finished.columns
        common = set.intersection(*map(set, world.comm.allgather(set(columns))))
        for number in common:
            columns[number]["rank"][:] = world.rank
        empty = step_columns(
            rank=world.rank, epoch=0, begin=0.0, losses=np.zeros(0, np.float32), calls=np.zeros((0, 2)), period=0
        )
        return tuple(columns[number] for number in sorted(common)) or (empty,)


def _of_slots(record: EpochRecord, slots: Sequence[int]) -> EpochRecord:
    """Return the record of an epoch with the times of these ranks alone."""
    return replace(
        record,
        seconds=tuple(record.seconds[slot] for slot in slots),
        sync_seconds=tuple(record.sync_seconds[slot] for slot in slots),
        input_seconds=tuple(record.input_seconds[slot] for slot in slots),
    )
