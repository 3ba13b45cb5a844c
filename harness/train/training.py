"""One launch from the inside, the same on every rank."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.cpu_contention import CpuUsage
from harness.base.scratch import keep_generated_files
from harness.base.turns import clock, current_turns
from harness.comm.core_ping import core_distance
from harness.comm.energy_counters import EnergyMeter
from harness.comm.gpus import Gpu
from harness.comm.hang import HangWatch
from harness.comm.host_clock import HostClock, Offset, read_offset
from harness.comm.placement_check import RankPlace, observe
from harness.comm.replicas import hash_weights, verify_replicas
from harness.comm.world import World, check_world_size
from harness.schema.point import Point
from harness.schema.record import EpochRecord
from harness.train.checkpointing import Checkpointing, PartialEpoch, Progress
from harness.train.evaluation import Scores
from harness.train.launch_record import TrainingOutcome, finite
from harness.train.replica import Replica, average_statistics, check_wire, epoch_order, prepare_replica
from harness.train.shard_data import load_shard
from harness.train.step_table import Columns, step_columns

_FEWEST_S = 2.0  # of training in turns: 40 rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStart:
    """What one rank sees before the first epoch: its place, all ranks' hosts, its clock, what it had used.

    `core_ns` as in `harness.comm.core_ping.core_distance`.
    """

    place: RankPlace
    hosts: list[str]
    clock: Offset
    core_ns: float
    usage: CpuUsage

    @classmethod
    def now(cls, world: World, gpu: Gpu | None) -> "TrainingStart":
        """Return what there is to see now of a rank that trains on `gpu`; on all ranks together."""
        place = observe(gpu)
        hosts = world.comm.allgather(place.host)
        offset = read_offset(world, hosts)
        core_ns = core_distance(world)
        return cls(place=place, hosts=hosts, clock=offset, core_ns=core_ns, usage=CpuUsage.now())

    def conclude(self, replica: Replica, core_ns: float, **fields: Any) -> TrainingOutcome:
        """Return what the rank knows after the last epoch, `fields` and what is seen now; on all ranks together.

        `core_ns` as at the start.

        Raises:
            SharedError: replicas that were kept equal differ.
        """
        usage = (self.usage, CpuUsage.now())
        world = replica.world
        weights = replica.state.model.weights
        drifting = world.size > 1 and not replica.state.synchroniser.policy.synchronises
        return TrainingOutcome(
            replica=replica,
            weights_sha256=hash_weights(weights) if drifting else verify_replicas(world, weights),
            identical=not drifting,
            usage=usage,
            place=self.place,
            clock=HostClock(begin=self.clock, end=read_offset(world, self.hosts)),
            core_ns=(self.core_ns, core_ns),
            **fields,
        )


def configure_tensorflow(threads: int) -> None:
    """Give TensorFlow as many threads as the rank has cores and start it. Call before its first operation."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.list_logical_devices()
    keep_generated_files()


def train(
    world: World,
    point: Point,
    data_dir: Path | None,
    report: Callable[[EpochRecord], None],
    gpu: Gpu | None = None,
    watch: HangWatch | None = None,
    record: Path | None = None,
) -> TrainingOutcome:
    """Train `point` on this rank, in step with all others. `report` is called after every epoch.

    `gpu` is the one that TensorFlow trains on, None for the processor. `watch` is started with the first epoch: before
    it a rank may wait long for another that prepares data or compiles. Beside `record`, the folder that is to hold the
    launch's record, checkpoints are kept, and an earlier attempt that left some is resumed.

    Raises:
        SharedError: bad input, or replicas that differ at the end; on every rank.
        Stopped: a signal asked for it; on every rank.
    """
    started = datetime.now(UTC)
    check_world_size(world, point.layout.ranks)
    data = load_shard(world, point, data_dir)
    turns = current_turns()
    if turns:
        turns.rest()
    begin = clock()
    replica = prepare_replica(world, point, data, gpu)
    compile_s = clock() - begin
    _start_watch(watch, replica)
    return _train_replica(replica, report, record, started=started, compile_s=compile_s)


def _train_replica(
    replica: Replica,
    report: Callable[[EpochRecord], None],
    record: Path | None,
    *,
    started: datetime,
    compile_s: float,
) -> TrainingOutcome:
    """Train all epochs that no earlier attempt has trained; return what the rank knows then."""
    world = replica.world
    turns = current_turns()
    checkpointing = Checkpointing(replica, record)
    progress = checkpointing.resume()
    if turns:
        turns.wait()
    meter = EnergyMeter(world, replica.gpu)
    start = TrainingStart.now(world, replica.gpu)
    with checkpointing.stoppable():
        evaluate_s = _train_epochs(replica, checkpointing, progress, report)
        if turns:
            _train_further_in_turns(replica, progress)
    core_ns = core_distance(world)
    if turns:
        turns.finish()
    energy = meter.stop(turns.windows if turns else None)
    return start.conclude(
        replica,
        core_ns,
        started=started,
        epochs=tuple(progress.epochs),
        steps=tuple(progress.steps),
        compile_s=compile_s,
        evaluate_s=evaluate_s,
        segments=checkpointing.segments,
        notes=(*checkpointing.notes, *energy.notes),
        energy=energy.devices,
    )


def _start_watch(watch: HangWatch | None, replica: Replica) -> None:
    if watch is None:
        return
    watch.opened(replica.reduction)
    if replica.statistics:
        watch.opened(replica.statistics)
    watch.start()


def _train_epochs(
    replica: Replica, checkpointing: Checkpointing, progress: Progress, report: Callable[[EpochRecord], None]
) -> float:
    """Train what `progress` does not have yet and return the seconds of all evaluations."""
    workload = replica.point.workload
    evaluate_s = 0.0
    while progress.epoch < workload.epochs:
        number = progress.epoch
        steps_before = progress.part.steps
        trained = train_epoch(replica, number, progress, checkpointing)
        tick = clock()
        scores = evaluate_all(replica)
        evaluate_s += clock() - tick
        progress.epochs.append(epoch_record(replica, number, trained, scores))
        progress.steps.append(trained.columns)
        progress.part = PartialEpoch()
        check_wire(replica, number)  # small gradients, which 16 bits may lose, come late
        report(progress.epochs[-1])
        if time_is_up(progress.epochs, workload.seconds):
            break
        if progress.epoch < workload.epochs:
            checkpointing.pause(progress, steps=len(trained.losses) - steps_before)
    checkpointing.finish(progress)
    return evaluate_s


def _train_further_in_turns(replica: Replica, progress: Progress) -> None:
    """Train on where all epochs took less than `_FEWEST_S`, for a turn block's rounds alone.

    Weights are put back and nothing is recorded. Launches that train for a tenth of a second have two or three rounds.
    """
    trained = sum(max(epoch.seconds) for epoch in progress.epochs)
    further = math.ceil((_FEWEST_S - trained) / trained * len(progress.epochs)) if 0 < trained < _FEWEST_S else 0
    weights = [(weight, weight.numpy()) for weight in replica.state.model.weights] if further else []
    for number in range(progress.epoch, progress.epoch + further):
        train_epoch(replica, number)
    for weight, value in weights:
        weight.assign(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedEpoch:
    """What one rank has of an epoch that it has trained.

    `losses` float32 [steps] are its summed row losses, `columns` its rows of steps.parquet. `seconds` are those from a
    barrier before the order of rows was drawn to the end of the compiled loop, `input_s` the part of them that drawing
    the order and waiting for images took.
    """

    losses: npt.NDArray[np.float32]
    columns: Columns
    seconds: float
    input_s: float


def train_epoch(
    replica: Replica, number: int, progress: Progress | None = None, checkpointing: Checkpointing | None = None
) -> TrainedEpoch:
    """Train epoch `number` on all ranks, from where `progress` is; in parts where `checkpointing` is to pause."""
    progress = progress or Progress()
    part = progress.part
    turns = current_turns()
    replica.world.comm.Barrier()
    begin = clock() - part.seconds
    order, partial, salt = epoch_order(replica, number)
    part.input_s += clock() - begin - part.seconds
    step = part.steps
    steps = len(order)
    while checkpointing and (pause := checkpointing.next_pause(step, steps)) < steps:
        losses = replica.epoch(order[step:pause], partial, salt, last=False)
        paused = clock()
        part.add(replica, begin, losses)
        checkpointing.pause(progress, steps=pause - step)
        step = pause
        if turns:
            turns.resume(paused)
    if step < replica.data.shards.steps(replica.point.workload.drop_remainder):
        part.add(replica, begin, replica.epoch(order[step:], partial, salt))
    else:
        part.seconds = clock() - begin
    if turns:
        turns.leave()
    return _conclude_epoch(replica, number, part, begin)


def _conclude_epoch(replica: Replica, number: int, part: PartialEpoch, begin: float) -> TrainedEpoch:
    """Return what `part` has of a whole epoch, which began at `begin` (s, clock)."""
    losses = np.concatenate(part.losses or [np.zeros(0, np.float32)])
    extra = {}
    if losses.ndim == 2:
        extra["input_s"] = losses[:, 1].astype(np.float64)
        losses = losses[:, 0]
        part.input_s += float(extra["input_s"].sum())
    turns = current_turns()
    if turns:
        marks = turns.take_marks(len(losses) - part.before)
        extra["turn"] = np.array([0] * part.before + marks, np.int32)
    if replica.statistics:
        extra["statistics_s"] = np.concatenate(part.statistics)
    columns = step_columns(
        rank=replica.world.rank,
        epoch=number,
        begin=begin,
        losses=losses,
        calls=np.concatenate(part.calls or [np.zeros((0, 2))]),
        period=replica.state.synchroniser.policy.period,
    )
    if replica.state.synchroniser.own_updates:
        replica.state.synchroniser.own_updates.take_calls()  # no synchronisation
    return TrainedEpoch(losses=losses, columns=columns | extra, seconds=part.seconds, input_s=part.input_s)


def time_is_up(epochs: list[EpochRecord], budget: float | None) -> bool:
    """Return whether the `epochs` have taken the budget's seconds, by the slowest rank of each; alike on every rank."""
    return budget is not None and sum(max(epoch.seconds) for epoch in epochs) >= budget


def evaluate_all(replica: Replica) -> Scores:
    """Evaluate on all ranks; batch normalisation's statistics, each rank's own until now, become those of all first."""
    if replica.state.synchroniser.policy.synchronises:
        average_statistics(replica.world, replica.state.model, replica.data.shards.weight(replica.world.rank))
    return replica.evaluate()


def epoch_record(replica: Replica, number: int, trained: TrainedEpoch, scores: Scores) -> EpochRecord:
    """Return the record of an epoch; on all ranks together."""
    columns = trained.columns
    synchronising = float(np.nansum(columns["exit_s"] - columns["entry_s"]))
    if "statistics_s" in columns:
        synchronising += float(columns["statistics_s"].sum())
    loss_sum = float(trained.losses.sum(dtype=np.float64))
    parts = replica.world.comm.allgather((trained.seconds, trained.input_s, synchronising, loss_sum))
    shards = replica.data.shards
    dropped = shards.remainder if replica.point.workload.drop_remainder else 0
    return EpochRecord(
        epoch=number,
        steps=len(trained.losses),
        seconds=tuple(part[0] for part in parts),
        sync_seconds=tuple(part[2] for part in parts),
        input_seconds=tuple(part[1] for part in parts),
        train_loss=finite(sum(part[3] for part in parts) / (shards.rows - dropped)),
        test_loss=finite(scores.loss),
        test_accuracy=scores.accuracy,
        test_auc=scores.auc,
    )
