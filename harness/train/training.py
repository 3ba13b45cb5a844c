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
from harness.base.errors import SharedError, UserError
from harness.base.scratch import keep_generated_files
from harness.base.turns import clock, current
from harness.comm.gpus import Gpu
from harness.comm.grouped_sums import core_distance
from harness.comm.hang import HangWatch
from harness.comm.placement import HostClock, Offset, RankPlace, observe, read_offset
from harness.comm.policies import hash_weights, verify_replicas
from harness.comm.world import World
from harness.schema.record import EpochRecord
from harness.schema.sweep import Point
from harness.train.checkpointing import Checkpointing, PartialEpoch, Progress
from harness.train.launch_record import Columns, TrainingOutcome, finite, step_columns
from harness.train.replica import Replica, Scores, average_statistics, check_wire, epoch_order, prepare_replica
from harness.train.shard_data import load

_FEWEST_S = 2.0  # of training in turns: 40 rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStart:
    """What one rank sees before the first epoch: its place, all ranks' hosts, its clock, what it had used.

    `core_ns` as in `harness.comm.grouped_sums.core_distance`.
    """

    place: RankPlace
    hosts: list[str]
    clock: Offset
    core_ns: float
    usage: CpuUsage

    @classmethod
    def now(cls, world: World) -> "TrainingStart":
        """Return what there is to see now; on all ranks together."""
        place = observe()
        hosts = world.comm.allgather(place.host)
        offset, core_ns = read_offset(world, hosts), core_distance(world)
        return cls(place=place, hosts=hosts, clock=offset, core_ns=core_ns, usage=CpuUsage.now())

    def conclude(self, replica: Replica, core_ns: float, **known: Any) -> TrainingOutcome:
        """Return what the rank knows after the last epoch, `known` and what is seen now; on all ranks together.

        `core_ns` as at the start.

        Raises:
            SharedError: replicas that were kept equal differ.
        """
        usage, world, weights = (self.usage, CpuUsage.now()), replica.world, replica.state.model.weights
        drifting = world.size > 1 and not replica.state.synchroniser.policy.synchronises
        return TrainingOutcome(
            replica=replica,
            weights_sha256=hash_weights(weights) if drifting else verify_replicas(world, weights),
            identical=not drifting,
            usage=usage,
            place=self.place,
            clock=HostClock(begin=self.clock, end=read_offset(world, self.hosts)),
            core_ns=(self.core_ns, core_ns),
            **known,
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
    if world.size != point.layout.ranks:
        raise SharedError(
            UserError(
                f"{world.size} MPI ranks were started for a layout of {point.layout.ranks}: start it with "
                f"mpirun -n {point.layout.ranks} or srun --ntasks={point.layout.ranks}"
            )
        )
    data = load(world, point, data_dir)
    turns = current()
    if turns:
        turns.rest()
    begin = clock()
    replica = prepare_replica(world, point, data, gpu)
    compile_s = clock() - begin
    if watch:
        for reduction in (replica.reduction, *([replica.statistics] if replica.statistics else [])):
            watch.opened(reduction)
        watch.start()
    checkpointing = Checkpointing(replica, record)
    progress = checkpointing.resume()
    if turns:
        turns.wait()
    begun = TrainingStart.now(world)
    with checkpointing.stoppable():
        evaluate_s = _train_epochs(replica, checkpointing, progress, report)
        if turns:
            _go_on_in_turns(replica, progress)
    core_ns = core_distance(world)
    if turns:
        turns.finish()
    return begun.conclude(
        replica,
        core_ns,
        started=started,
        epochs=tuple(progress.epochs),
        steps=tuple(progress.steps),
        compile_s=compile_s,
        evaluate_s=evaluate_s,
        segments=checkpointing.segments,
        notes=tuple(checkpointing.notes),
    )


def _train_epochs(
    replica: Replica, checkpointing: Checkpointing, progress: Progress, report: Callable[[EpochRecord], None]
) -> float:
    """Train what `progress` does not have yet and return the seconds of all evaluations."""
    workload, evaluate_s = replica.point.workload, 0.0
    while progress.epoch < workload.epochs:
        number, made = progress.epoch, progress.part.steps
        losses, columns, *times = train_epoch(replica, number, progress, checkpointing)
        tick = clock()
        scores = evaluate_all(replica)
        evaluate_s += clock() - tick
        progress.epochs.append(epoch_record(replica, number, losses, columns, (times[0], times[1]), scores))
        progress.steps.append(columns)
        progress.part = PartialEpoch()
        check_wire(replica, number)  # small gradients, which 16 bits may lose, come late
        report(progress.epochs[-1])
        if time_is_up(progress.epochs, workload.seconds):
            break
        if progress.epoch < workload.epochs:
            checkpointing.pause(progress, made=len(losses) - made)
    checkpointing.finish(progress)
    return evaluate_s


def _go_on_in_turns(replica: Replica, progress: Progress) -> None:
    """Train on where all epochs took less than `_FEWEST_S`, for a block's rounds alone.

    Weights are put back and nothing is recorded. Launches that train for a tenth of a second have two or three rounds.
    """
    trained = sum(max(epoch.seconds) for epoch in progress.epochs)
    further = math.ceil((_FEWEST_S - trained) / trained * len(progress.epochs)) if 0 < trained < _FEWEST_S else 0
    weights = [(weight, weight.numpy()) for weight in replica.state.model.weights] if further else []
    for number in range(progress.epoch, progress.epoch + further):
        train_epoch(replica, number)
    for weight, value in weights:
        weight.assign(value)


def train_epoch(
    replica: Replica, number: int, progress: Progress | None = None, checkpointing: Checkpointing | None = None
) -> tuple[npt.NDArray[np.float32], Columns, float, float]:
    """Train epoch `number` on all ranks, from where `progress` is; in parts where `checkpointing` is to pause.

    Returns:
        the rank's summed row losses of every step, its rows of steps.parquet, the epoch's seconds on this rank
        (from a barrier before its order of rows is drawn to the end of the compiled loop), and the part of them that
        drawing the order and waiting for images took.
    """
    progress = progress or Progress()
    part, turns = progress.part, current()
    replica.world.comm.Barrier()
    begin = clock() - part.seconds
    order, partial, salt = epoch_order(replica, number)
    part.input_s += clock() - begin - part.seconds
    step, steps = part.steps, len(order)
    while checkpointing and (pause := checkpointing.next_pause(step, steps)) < steps:
        made = replica.epoch(order[step:pause], partial, salt, last=False)
        paused = clock()
        part.add(replica, begin, made)
        checkpointing.pause(progress, made=pause - step)
        step = pause
        if turns:
            turns.resume(paused)
    if step < replica.data.shards.steps(replica.point.workload.drop_remainder):
        part.add(replica, begin, replica.epoch(order[step:], partial, salt))
    else:
        part.seconds = clock() - begin
    if turns:
        turns.leave()
    losses = np.concatenate(part.losses or [np.zeros(0, np.float32)])
    extra = {}
    if losses.ndim == 2:
        losses, extra["input_s"] = losses[:, 0], losses[:, 1].astype(np.float64)
        part.input_s += float(extra["input_s"].sum())
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
    if replica.state.synchroniser.alone:
        replica.state.synchroniser.alone.take_calls()  # no synchronisation
    return losses, columns | extra, part.seconds, part.input_s


def time_is_up(epochs: list[EpochRecord], budget: float | None) -> bool:
    """Tell whether the `epochs` have taken the budget's seconds, by the slowest rank of each; alike on every rank."""
    return budget is not None and sum(max(epoch.seconds) for epoch in epochs) >= budget


def evaluate_all(replica: Replica) -> Scores:
    """Evaluate on all ranks; batch normalisation's statistics, each rank's own until now, become those of all first."""
    if replica.state.synchroniser.policy.synchronises:
        average_statistics(replica.world, replica.state.model, replica.data.shards.weight(replica.world.rank))
    return replica.evaluate()


def epoch_record(
    replica: Replica,
    number: int,
    losses: npt.NDArray[np.float32],
    columns: Columns,
    times: tuple[float, float],
    scores: Scores,
) -> EpochRecord:
    """Return the record of an epoch; on all ranks together. `times` are its seconds and those of its input."""
    synchronising = float(np.nansum(columns["exit_s"] - columns["entry_s"]))
    if "statistics_s" in columns:
        synchronising += float(columns["statistics_s"].sum())
    parts = replica.world.comm.allgather((*times, synchronising, float(losses.sum(dtype=np.float64))))
    shards = replica.data.shards
    dropped = shards.remainder if replica.point.workload.drop_remainder else 0
    return EpochRecord(
        epoch=number,
        steps=len(losses),
        seconds=tuple(part[0] for part in parts),
        sync_seconds=tuple(part[2] for part in parts),
        input_seconds=tuple(part[1] for part in parts),
        train_loss=finite(sum(part[3] for part in parts) / (shards.rows - dropped)),
        test_loss=finite(scores.loss),
        test_accuracy=scores.accuracy,
        test_auc=scores.auc,
    )
