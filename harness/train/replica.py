"""One rank's replica: its network, optimizer and compiled epoch, equal on all ranks when training begins; scores."""

import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import keras
import numpy as np
import psutil
import tensorflow as tf

from harness import models
from harness.base.cores import memory_limit
from harness.base.errors import SharedError, UserError
from harness.base.setting_names import setting
from harness.comm.gpus import Gpu
from harness.comm.reduction import Reduction, WireReduction, differentiable_sum
from harness.comm.reduction_choice import select
from harness.comm.replicas import broadcast_weights
from harness.comm.synchroniser import Synchroniser, synchroniser
from harness.comm.world import World, needs_sync
from harness.models.global_batch_layers import BatchPart, divide_randomness, normalisations, row_means, synchronise
from harness.schema.own_code import find_policy
from harness.schema.point import Point
from harness.schema.sync_policies import SyncPolicy
from harness.schema.workload import OPTIMIZERS, Workload, survives
from harness.train.batch_input import ImageFiles, flip_salt, image_dataset, prepare_input, resident_batch
from harness.train.epoch_loop import Epoch, StreamedEpoch, compile_epoch
from harness.train.evaluation import Scores, compile_evaluation
from harness.train.optimizer import build_optimizer
from harness.train.shard_data import RankData
from harness.train.step import TrainState, first_output, row_losses

# Batch normalisation's statistics, which are each rank's own while it trains.


def own_statistics(model: keras.Model) -> tuple[keras.Variable, ...]:
    """Return the floating-point weights of `model` that are not trained."""
    return tuple(variable for variable in model.non_trainable_variables if tf.as_dtype(variable.dtype).is_floating)


def average_statistics(world: World, model: keras.Model, weight: float) -> None:
    """Make every rank's `own_statistics` those of the rows of all ranks; `weight` is this rank's part of the rows.

    They become weighted means over the ranks. To batch normalisation's variances the variance between the ranks'
    means is added (the law of total variance), as one rank with all rows sees it.
    """
    if world.size == 1:
        return

    def mean(value: np.ndarray) -> np.ndarray:
        total = np.empty_like(value, np.float64)
        world.comm.Allreduce(np.array(value * np.float64(weight)), total)
        return total

    between = {}
    for layer in normalisations(model):
        rank_mean = np.asarray(layer.moving_mean)
        between[id(layer.moving_variance)] = mean(np.square(rank_mean - mean(rank_mean)))
    for variable in own_statistics(model):
        variable.assign(mean(np.asarray(variable)) + between.get(id(variable), 0.0))


# Whether a training step fits into a rank's memory, before it is made.

_GIB = 2**30


_WEIGHT_COPIES = 4  # gradients, their sums, the optimizer's work, and the copy that warm-up restores


_BACKWARD = 1.6  # maps live at the same time over maps of the forward pass: measured with ResNet-50 on CPU


def predict_bytes(model: keras.Model, optimizer: keras.optimizers.Optimizer, *, rows: int, precision: str) -> int:
    """Return the bytes that a step of `rows` rows adds to what a process with model and optimizer already has.

    The maps that the forward pass keeps for the backward pass, and copies of the weights. An estimate: what the
    kernels' libraries need besides is in the factors.
    """
    size = 4 if precision == "float32" else 2
    maps = sum(math.prod(output.shape[1:]) for layer in model.layers for output in _outputs(layer))
    weights = sum(math.prod(variable.shape) for variable in model.trainable_variables) * 4
    slots = sum(math.prod(variable.shape) for variable in optimizer.variables) * 4
    total: int = int(maps * rows * size * _BACKWARD) + weights * _WEIGHT_COPIES + slots
    return total


def _outputs(layer: keras.Layer) -> Sequence[keras.KerasTensor]:
    """Return the outputs of `layer` that are memory of their own."""
    if not layer._inbound_nodes or isinstance(layer, (keras.layers.Flatten, keras.layers.Reshape)):
        return ()
    output = layer.output
    return output if isinstance(output, (list, tuple)) else (output,)


def refuse_too_large(world: World, needed: int, what: str, gpu: Gpu | None) -> int:
    """Return the peak that this rank will reach, in bytes: what it has now and `needed` more, or on a GPU `needed`.

    Raises:
        SharedError: on some host or GPU that is more than there is, for all ranks on it together.
    """
    if gpu is None:
        now = int(psutil.Process().memory_info().rss)
        place = platform.node()
        free = memory_limit()
    else:
        now = 0
        place = f"GPU {gpu.uuid}"
        free = int(float(gpu.memory_mib) * 2**20)
    asked = world.comm.allgather((place, needed, free))
    counts = Counter(name for name, _, _ in asked)
    for name, more, left in asked:
        if more * counts[name] > left:
            raise SharedError(
                UserError(
                    f"{what} needs about {more / _GIB:.1f} GiB for each rank's steps, but {name} has "
                    f"{left / _GIB:.1f} GiB left for {counts[name]}: use a smaller batch per rank"
                )
            )
    return now + needed


_WARM_UP_STEPS = 3
_TIMED_STEPS = 64
_TIMED_S = 0.1


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

    @property
    def variables(self) -> list[keras.Variable]:
        """All that training changes: weights, statistics and seeds of random layers, the optimizer's and policy's."""
        return [*self.state.model.variables, *self.state.optimizer.variables, *self.state.synchroniser.state]


def prepare_replica(
    world: World, point: Point, data: RankData, gpu: Gpu | None = None, *, warm: bool = True
) -> Replica:
    """Build the model with rank 0's weights, compile the epoch and, if `warm`, run a few steps that leave no trace.

    Raises:
        SharedError: the workload's network or augmentation does not suit the data, or a step does not fit into
            memory; on every rank.
        UserError: the network is unknown or does not suit the data.
    """
    _check_images(point, data)
    workload = point.workload
    model = _build_network(point, data)
    optimizer = build_optimizer(
        workload, steps_per_epoch=data.shards.steps(workload.drop_remainder), ranks=point.layout.ranks
    )
    optimizer.build(model.trainable_variables)
    rows = len(data.shards.lanes(world.rank))
    needed = predict_bytes(model, optimizer, rows=rows, precision=workload.precision)
    predicted = refuse_too_large(world, needed, f"a step of {workload.model} on {rows} rows a rank", gpu)
    broadcast_weights(world, model.variables)  # with the seeds of dropout
    state, statistics = _train_state(world, point, data, model, optimizer, gpu)
    replica = Replica(
        world=world,
        point=point,
        data=data,
        state=state,
        reduction=state.synchroniser.reduction,
        statistics=statistics,
        epoch=_compile(state, point, data, world.rank),
        evaluate=compile_evaluation(world, model, workload.loss, data, point.layout.threads),
        predicted_memory_bytes=predicted,
        gpu=gpu,
    )
    check_wire(replica, 0)
    if warm:
        replica = replace(replica, step_without_input_s=_warm_up(replica))
    return replica


def _train_state(
    world: World,
    point: Point,
    data: RankData,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    gpu: Gpu | None,
) -> tuple[TrainState, Reduction | None]:
    """Return what the rank trains, and normalisation's reduction, None where it needs none.

    On processors batches and updates have native operations, which XLA cannot compile; nor can it, perhaps, a user's
    optimizer.
    """
    workload = point.workload
    part, statistics = _place_layers(world, workload, model)
    compiles_on_gpu = workload.xla and gpu is not None
    state = TrainState(
        model=model,
        optimizer=optimizer,
        loss=workload.loss,
        synchroniser=_synchroniser(world, point, data, model),
        part=part,
        statistics=() if statistics else own_statistics(model),
        mirror=workload.augment != "none",
        smoothing=workload.label_smoothing,
        weight_decay=workload.weight_decay,
        xla=workload.xla,
        xla_draw=compiles_on_gpu,
        xla_update=compiles_on_gpu and workload.optimizer in OPTIMIZERS,
    )
    return state, statistics


def _synchroniser(world: World, point: Point, data: RankData, model: keras.Model) -> Synchroniser:
    """Return what keeps the ranks in step, with a reduction for the largest sum that the policy makes."""
    policy = find_policy(point.workload.sync)
    overlaps = policy.shares_gradients  # weights are averaged when no gradients are computed
    reduction = select(
        world,
        _largest_sum(policy, model),
        wire=point.workload.wire,
        threads=point.layout.threads if overlaps else 1,
        whole=survives(point.workload),
    )
    weights = model.trainable_variables
    return synchroniser(world, policy, weight=data.shards.weight(world.rank), reduction=reduction, weights=weights)


def _largest_sum(policy: SyncPolicy, model: keras.Model) -> list[int]:
    """Return the bytes of each tensor of the largest sum that `policy` makes."""
    weights = [tuple(variable.shape) for variable in model.trainable_variables]
    sums = policy.sums(weights)
    size = model.trainable_variables[0].value.dtype.size if weights else 0
    return [size * count for count in max(sums, key=sum)]


def _compile(state: TrainState, point: Point, data: RankData, rank: int) -> Epoch:
    """Return the compiled epoch of `state`."""
    threads = point.layout.threads
    drop_remainder = point.workload.drop_remainder
    if data.files is not None:
        return StreamedEpoch(state, data, rank=rank, threads=threads, drop_remainder=drop_remainder)
    batch = resident_batch(data, first=data.shards.own_rows(rank).start, mirror=state.mirror)
    return compile_epoch(state, data, batch, rank=rank, drop_remainder=drop_remainder)


def _check_images(point: Point, data: RankData) -> None:
    """Refuse what does not suit the rows, on every rank."""
    workload = point.workload
    ranks = range(point.layout.ranks)
    if workload.augment != "none" and len(data.record.features) != 3:
        augment = setting("augment", workload.augment)
        raise SharedError(UserError(f"{augment} needs images, but {workload.dataset} has none: leave it out"))
    if workload.augment == "crop" and data.files is None:
        raise SharedError(
            UserError(
                f"{setting('augment', 'crop')} needs images in files: use {setting('augment', 'flip')} for images "
                "held in "
                "memory"
            )
        )
    if data.files is not None and not all(len(data.shards.lanes(rank)) for rank in ranks):
        raise SharedError(UserError(f"a global batch of {data.shards.batch} leaves ranks without images: increase it"))


def _build_network(point: Point, data: RankData) -> keras.Model:
    workload = point.workload
    tf.keras.utils.set_random_seed(point.seed)
    model = models.build_network(
        workload.model,
        dataset=workload.dataset,
        features=data.record.features,
        classes=data.record.classes,
        init=workload.init,
        precision=workload.precision,
    )
    if workload.sync_bn and not normalisations(model):
        raise SharedError(
            UserError(f"{setting('sync_bn', True)}, but {workload.model} has no batch normalisation: leave it out")
        )
    return model


def _place_layers(world: World, workload: Workload, model: keras.Model) -> tuple[BatchPart, Reduction | None]:
    """Let dropout and synchronised batch normalisation treat this rank's rows as a part of the global batch.

    Return the part, and normalisation's reduction, None where it needs none: gradients have another, so that no two
    calls can cross.
    """
    part = BatchPart()
    divide_randomness(model, part, world.rank)
    if not workload.sync_bn or not needs_sync(world.size):
        return part, None
    floats = max(2 * layer.moving_mean.shape[0] + 1 for layer in normalisations(model))
    reduction = select(world, [floats * np.dtype(np.float64).itemsize])
    total = partial(differentiable_sum, reduction, label="batch normalisation")
    synchronise(model, row_means(total, part))
    return part, reduction


def check_wire(replica: Replica, epoch: int) -> None:
    """Compare 16-bit sums of the gradients of the first batch of `epoch` with exact ones, under the current weights.

    Without effect where gradients travel as they are.

    Raises:
        SharedError: the 16-bit sums are too far off, on every rank.
    """
    state = replica.state
    reduction = replica.reduction
    if not isinstance(reduction, WireReduction):
        return
    inputs, labels = first_batch(replica, epoch)
    values = [variable.value for variable in state.model.trainable_variables]
    if len(labels):
        with tf.GradientTape() as tape:
            # Not in training mode: batch normalisation must keep its statistics.
            logits = first_output(state.model(inputs, training=False))
            loss = tf.reduce_sum(row_losses(state.loss, labels, logits))
            divisor = state.synchroniser.divisor(len(labels), replica.data.shards.batch)
            loss = state.optimizer.scale_loss(loss / divisor)
        gradients = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    else:
        gradients = [tf.zeros_like(value) for value in values]
    reduction.check([tf.convert_to_tensor(gradient) for gradient in gradients], f"epoch {epoch + 1}'s first batch")
    reduction.take_calls()


def first_batch(replica: Replica, epoch: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the network's input and the labels of the rank's rows of the epoch's first batch."""
    data = replica.data
    order, partial_batch = data.shards.order(replica.world.rank, seed=replica.point.seed, epoch=epoch)
    rows = order[0] if len(order) else partial_batch
    if data.files is None or not len(rows):
        return prepare_input(tf.gather(data.train_x, rows), data.shift, data.factor), tf.gather(data.train_y, rows)
    images = image_dataset(
        ImageFiles(data.files),
        data.train_x[rows],
        data.train_y[rows],
        rows.astype(np.int64),
        batch=len(rows),
        size=data.record.features[0],
        threads=1,
        salt=None,
    )
    decoded, labels = next(iter(images))
    return prepare_input(decoded, data.shift, data.factor), labels


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
    saved = [np.array(variable.numpy(), order="C") for variable in replica.variables]
    yield epoch_order(replica, 0)
    for variable, value in zip(replica.variables, saved, strict=True):
        variable.assign(value)
    replica.reduction.take_calls()
    if replica.statistics:
        replica.statistics.take_calls()


def epoch_order(replica: Replica, epoch: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the order of the rank's rows in `epoch` and its salt, as `Replica.epoch` takes them."""
    seed = replica.point.seed
    order, partial = replica.data.shards.order(replica.world.rank, seed=seed, epoch=epoch)
    return tf.constant(order), tf.constant(partial), tf.constant(flip_salt(seed, epoch), tf.uint32)
