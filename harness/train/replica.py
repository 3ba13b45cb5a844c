"""One rank's replica: its network, optimizer and compiled epoch, equal on all ranks when training begins."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import keras
import numpy as np
import tensorflow as tf

from harness.base.errors import SharedError, UserError
from harness.comm.autotune import select
from harness.comm.compression import WireReduction
from harness.comm.gpus import Gpu
from harness.comm.policies import broadcast_weights, synchroniser
from harness.comm.reduction import Reduction
from harness.comm.world import World
from harness.schema.sweep import Point
from harness.schema.sync import find_policy
from harness.train.batch import flip_salt, prepare_input
from harness.train.devices import check_memory, predict_bytes
from harness.train.evaluate import Scores, compile_evaluation
from harness.train.image_stream import ImageFiles, StreamedEpoch, image_dataset
from harness.train.network import build_network, own_statistics, place_layers
from harness.train.optimizer import build_optimizer
from harness.train.shard_data import RankData
from harness.train.step import Epoch, TrainState, compile_epoch, first_output, row_losses


def check_wire(
    rank: int, data: RankData, state: TrainState, reduction: WireReduction, *, seed: int, epoch: int
) -> None:
    """Have `reduction` compare the sums of the gradients of the first batch of `epoch`, under the weights as they are.

    Raises:
        SharedError: the 16-bit sums are too far off, on every rank.
    """
    inputs, labels = _first_batch(rank, data, seed, epoch)
    variables = state.model.trainable_variables
    values = [variable.value for variable in variables]
    if len(labels):
        with tf.GradientTape() as tape:
            # Not in training mode: batch normalisation must keep its statistics.
            logits = first_output(state.model(inputs, training=False))
            loss = tf.reduce_sum(row_losses(state.loss, labels, logits))
            loss = state.optimizer.scale_loss(loss / state.synchroniser.divisor(len(labels), data.shards.batch))
        gradients = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    else:
        gradients = [tf.zeros_like(value) for value in values]
    reduction.check([tf.convert_to_tensor(gradient) for gradient in gradients], f"epoch {epoch + 1}'s first batch")
    reduction.take_calls()


def _first_batch(rank: int, data: RankData, seed: int, epoch: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the network's input and the labels of the rank's rows of the epoch's first batch."""
    order, partial = data.shards.order(rank, seed=seed, epoch=epoch)
    rows = order[0] if len(order) else partial
    if data.files is None or not len(rows):
        return prepare_input(tf.gather(data.train_x, rows), data.shift, data.factor), tf.gather(data.train_y, rows)
    images = image_dataset(
        ImageFiles(data.files), data.train_x, data.train_y, rows.astype(np.int64), batch=len(rows),
        size=data.record.features[0], threads=1, salt=None,
    )  # fmt: skip
    decoded, labels = next(iter(images))
    return prepare_input(decoded, data.shift, data.factor), labels


_WARM_UP_STEPS = 3
_TIMED_STEPS, _TIMED_S = 64, 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """One rank's data, model and compiled functions, ready to train.

    `statistics` sums batch normalisation's moments over the ranks, None where it need not. `step_without_input_s` is
    the seconds of a step that need not wait for images, 0 where they are resident; `gpu` what it trains on.
    """

    world: World
    point: Point
    data: RankData
    state: TrainState
    reduction: Reduction
    statistics: Reduction | None
    epoch: Epoch
    evaluate: Callable[[], Scores]
    predicted_memory_bytes: int
    gpu: Gpu | None
    step_without_input_s: float = 0.0


def prepare_replica(
    world: World, point: Point, data: RankData, gpu: Gpu | None = None, *, warm: bool = True
) -> Replica:
    """Build the model with rank 0's weights, compile the epoch and, if `warm`, run a few steps that leave no trace.

    Raises:
        SharedError: the workload's network or augmentation does not suit the data, or a step does not fit into
            memory; on every rank.
    """
    workload = point.workload
    _check_images(point, data)
    model = build_network(point, data)
    optimizer = _build_optimizer(point, data, model)
    rows = len(data.shards.lanes(world.rank))
    needed = predict_bytes(model, optimizer, rows=rows, precision=workload.precision)
    predicted = check_memory(world, needed, f"a step of {workload.model} on {rows} rows a rank", gpu)
    broadcast_weights(world, model.variables)  # with the seeds of dropout
    part, statistics = place_layers(world, workload, model)
    reduction = _select_reduction(world, point, model)
    weight = data.shards.weight(world.rank)
    state = TrainState(
        model=model,
        optimizer=optimizer,
        loss=workload.loss,
        synchroniser=synchroniser(world, find_policy(workload.sync), weight=weight, reduction=reduction),
        part=part,
        statistics=() if statistics else own_statistics(model),
        mirror=workload.augment != "none",
        smoothing=workload.label_smoothing,
        weight_decay=workload.weight_decay,
        xla=workload.xla,
    )
    replica = Replica(
        world=world,
        point=point,
        data=data,
        state=state,
        reduction=reduction,
        statistics=statistics,
        epoch=_compile_epoch(world, point, data, state),
        evaluate=compile_evaluation(world, model, workload.loss, data, point.layout.threads),
        predicted_memory_bytes=predicted,
        gpu=gpu,
    )
    if isinstance(reduction, WireReduction):
        check_wire(world.rank, data, state, reduction, seed=point.seed, epoch=0)
    return replace(replica, step_without_input_s=_warm_up(replica)) if warm else replica


def _build_optimizer(point: Point, data: RankData, model: keras.Model) -> keras.optimizers.Optimizer:
    shards = data.shards
    partial = bool(shards.remainder) and not point.workload.drop_remainder
    steps = shards.full_steps + partial
    optimizer = build_optimizer(point.workload, steps_per_epoch=steps, ranks=point.layout.ranks)
    optimizer.build(model.trainable_variables)
    return optimizer


def _select_reduction(world: World, point: Point, model: keras.Model) -> Reduction:
    sizes = [variable.value.dtype.size * math.prod(variable.shape) for variable in model.trainable_variables]
    beside = find_policy(point.workload.sync).shares_gradients  # weights are averaged when no gradients are computed
    return select(world, sizes, wire=point.workload.wire, threads=point.layout.threads if beside else 1)


def _check_images(point: Point, data: RankData) -> None:
    """Refuse what does not suit the rows, on every rank."""
    workload, ranks = point.workload, range(point.layout.ranks)
    if workload.augment != "none" and len(data.record.features) != 3:
        augment = f"AUGMENT={workload.augment}"
        raise SharedError(UserError(f"{augment} needs images, but {workload.dataset} has none: leave it out"))
    if workload.augment == "crop" and data.files is None:
        raise SharedError(UserError("AUGMENT=crop needs images in files: use AUGMENT=flip for images held in memory"))
    if data.files is not None and not all(len(data.shards.lanes(rank)) for rank in ranks):
        raise SharedError(UserError(f"a global batch of {data.shards.batch} leaves ranks without images: use a larger"))


def _compile_epoch(world: World, point: Point, data: RankData, state: TrainState) -> Epoch:
    drop_remainder = point.workload.drop_remainder
    if data.files is None:
        return compile_epoch(state, data, rank=world.rank, drop_remainder=drop_remainder)
    threads = point.layout.threads
    return StreamedEpoch(state, data, rank=world.rank, threads=threads, drop_remainder=drop_remainder)


def _warm_up(replica: Replica) -> float:
    """Trace, compile, touch all memory and make the first collectives, without a trace.

    Return the seconds of a step whose input costs nothing, 0 where rows are resident anyway.
    """
    with _untouched(replica) as (order, partial, salt):
        replica.epoch(order[:_WARM_UP_STEPS], partial, salt)
        seconds = 0.0
        if isinstance(replica.epoch, StreamedEpoch):
            seconds = replica.epoch.without_input(order, partial, salt)
        replica.evaluate()
    return seconds


def seconds_per_step(replica: Replica) -> float:
    """Return about how long a step takes on this rank, made on all ranks together and without a trace."""
    with _untouched(replica) as (order, partial, salt):
        for steps in (1, _TIMED_STEPS):
            begin = time.perf_counter()
            replica.epoch(order[:steps], partial, salt).numpy()
            seconds = time.perf_counter() - begin
            if replica.world.comm.bcast(seconds, root=0) > _TIMED_S:
                break
    return seconds / min(steps, len(order))


def trace_part(replica: Replica) -> None:
    """Compile what trains a part of an epoch, without a trace."""
    with _untouched(replica) as (order, partial, salt):
        replica.epoch(order[:_WARM_UP_STEPS], partial, salt, last=False)


@contextmanager
def _untouched(replica: Replica) -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """Yield the order of the first epoch; afterwards restore every variable and forget all calls."""
    model, optimizer = replica.state.model, replica.state.optimizer
    variables = [*model.variables, *optimizer.variables]
    saved = [np.array(variable.numpy(), order="C") for variable in variables]
    yield epoch_order(replica, 0)
    for variable, value in zip(variables, saved, strict=True):
        variable.assign(value)
    replica.reduction.take_calls()
    if replica.statistics:
        replica.statistics.take_calls()


def epoch_order(replica: Replica, epoch: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the order of the rank's rows in `epoch` and its salt, as `Replica.epoch` takes them."""
    seed = replica.point.seed
    order, partial = replica.data.shards.order(replica.world.rank, seed=seed, epoch=epoch)
    return tf.constant(order), tf.constant(partial), tf.constant(flip_salt(seed, epoch), tf.uint32)
