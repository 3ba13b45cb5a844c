"""One training step: batch, loss per row, forward, backward, synchronisation, update; and an epoch as one graph.

Of rows on the device, or of images whose batches are decoded while it runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.comm.native_library import find_library
from harness.comm.policies import Synchroniser
from harness.models.ranks import BatchPart
from harness.train.optimizer import update
from harness.train.shard_data import ImageFiles, RankData, image_dataset

Floats = npt.NDArray[np.float32]

_MASK = 0xFFFFFFFF
# Odd constants of xxHash32 (Collet): their products spread close numbers over all 32 bits.
_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)


def flip_salt(seed: int, epoch: int) -> int:
    """Return the 32-bit number that tells the mirrored rows of one epoch from those of another."""
    return (seed * _PRIMES[1] + (epoch + 1) * _PRIMES[2]) & _MASK


def flip(images: tf.Tensor, rows: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
    """Return `images` [rows, height, width, channels] with about every second one mirrored left to right.

    Which ones is a function of the row's number in the whole data set (`rows`, int32 [rows]) and of `salt`
    (uint32, `flip_salt`) alone.
    """
    mixed = tf.cast(rows, tf.uint32) * tf.constant(_PRIMES[0], tf.uint32) + salt
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, tf.constant(15, tf.uint32)))
    mixed *= tf.constant(_PRIMES[1], tf.uint32)
    mirrored = tf.bitwise.right_shift(mixed, tf.constant(31, tf.uint32)) == 1
    return tf.where(mirrored[:, tf.newaxis, tf.newaxis, tf.newaxis], tf.reverse(images, axis=[2]), images)


def prepare_input(rows: tf.Tensor, shift: Floats | None, factor: Floats | None) -> tf.Tensor:
    """Return the network's input float32: `rows` as they are, or (rows - shift) * factor for uint8 images."""
    if shift is None or factor is None:
        return rows
    if shift.size == 1 and not tf.config.list_logical_devices("GPU"):  # there the rows would travel twice a step
        # One pass over the batch instead of three, which a small network feels.
        low, high = (float((value - shift.item()) * factor.item()) for value in (0, 255))
        return tf.quantization.dequantize(tf.bitcast(rows, tf.quint8), low, high, mode="MIN_COMBINED")
    features = rows.shape[1:]
    flat = tf.reshape(tf.cast(rows, tf.float32), [-1, features.num_elements()])  # short rows broadcast slowly
    return tf.reshape((flat - _as_row(shift, features)) * _as_row(factor, features), tf.shape(rows))


def _as_row(values: Floats, features: tf.TensorShape) -> Floats:
    """Return `values`, which broadcast against a row of shape `features`, as float32 [values of a row]."""
    return np.ascontiguousarray(np.broadcast_to(values, tuple(features)), np.float32).ravel()


Batch = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""Takes an order (int32 [steps, rows]), a step's number (int32) and a `flip_salt` (uint32), and returns the network's
input (float32 [rows, *features]) and the labels (int32 [rows]) of that step, for a graph."""


def resident_batch(data: RankData, *, first: int, mirror: bool) -> Batch:
    """Return what makes batches of the rank's rows, kept on the device; row 0 is row `first` of the whole data set.

    The native operation and TensorFlow's own, which are taken on a GPU and where there is no compiler, agree to
    rounding.
    """
    rows, labels = tf.constant(data.train_x), tf.constant(data.train_y)
    library = None if tf.config.list_logical_devices("GPU") else find_library().library
    if library is None or data.train_x.dtype not in (np.uint8, np.float32):

        def plain(order: tf.Tensor, step: tf.Tensor, salt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            numbers = order[step]
            values = tf.gather(rows, numbers)
            if mirror:
                values = flip(values, numbers + first, salt)
            return prepare_input(values, data.shift, data.factor), tf.gather(labels, numbers)

        return plain

    none = np.zeros(0, np.float32)
    shift, factor = (none if part is None else _as_row(part, rows.shape[1:]) for part in (data.shift, data.factor))

    def batch(order: tf.Tensor, step: tf.Tensor, salt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs, targets = library.operations.harness_batch(
            rows, labels, order, step, shift, factor, salt, mirror=mirror, first=first
        )
        return inputs, targets

    return batch


def row_losses(loss: str, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return float32 [rows]: ``cross-entropy``, or ``squared-error`` of the softmax, summed over classes.

    `labels` int32 [rows], `logits` float32 [rows, classes].
    """
    if loss == "cross-entropy":
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    target = tf.one_hot(labels, logits.shape[-1])
    return tf.reduce_sum(tf.square(tf.nn.softmax(logits) - target), axis=-1)


def smooth(rows: tf.Tensor, logits: tf.Tensor, part: float) -> tf.Tensor:
    """Return cross-entropies `rows` [rows] with `part` of each label spread over all classes.

    As in Szegedy et al. 2016 ("Rethinking the Inception Architecture"), section 7.
    """
    spread = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
    return (1 - part) * rows + part * spread


_AUXILIARY_WEIGHT = 0.3  # of the auxiliary classifiers' losses (Szegedy et al. 2014, section 5)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """What one rank trains: the replica, its optimizer, the loss and what keeps it in step.

    `part` tells the model's layers which rows of the global batch they have; `statistics` are the floating-point
    weights that follow each rank's own rows, such as batch normalisation's moving means. `mirror` has every second
    image flipped at random (`compile_epoch`). `smoothing` and `weight_decay` as in `Workload`; `xla` compiles
    forward and backward.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    loss: str
    synchroniser: Synchroniser
    part: BatchPart
    statistics: tuple[keras.Variable, ...] = ()
    mirror: bool = False
    smoothing: float = 0.0
    weight_decay: float = 0.0
    xla: bool = False


def train_step(state: TrainState, inputs: tf.Tensor, labels: tf.Tensor, local: range, global_rows: int) -> tf.Tensor:
    """Make one step and return the rank's summed row losses, without smoothing, auxiliary losses and L2.

    `inputs` float32 [rows, *features], `labels` int32 [rows]: rows `local` of a global batch of `global_rows`. A rank
    without rows makes the same calls on a row of zeros that counts nothing, since many of TensorFlow's operations
    cannot do with no rows: its gradients are zeros and its statistics stay as they were.
    """
    state.part.first, state.part.rows = local.start, len(local)
    divisor = float(state.synchroniser.divisor(len(local), global_rows))

    def differentiate(rows: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return _differentiate(state, rows, targets, divisor, len(local) / divisor)

    if state.xla:
        differentiate = tf.function(differentiate, jit_compile=True, autograph=False)
    if local:
        loss, gradients = differentiate(inputs, labels)
    else:
        before = [tf.identity(variable.value) for variable in state.statistics]
        loss, gradients = differentiate(tf.zeros([1, *inputs.shape[1:]]), tf.zeros([1], labels.dtype))
        loss, gradients = tf.zeros_like(loss), [tf.zeros_like(gradient) for gradient in gradients]
        for variable, value in zip(state.statistics, before, strict=True):
            variable.assign(value)
    update(state.optimizer, state.synchroniser, gradients, state.model.trainable_variables)
    return loss


def first_output(outputs: Any) -> tf.Tensor:
    """Return the network's own logits, float32, whether or not it has auxiliary classifiers."""
    return tf.cast(outputs[0] if isinstance(outputs, (list, tuple)) else outputs, tf.float32)


def _differentiate(
    state: TrainState, inputs: tf.Tensor, labels: tf.Tensor, divisor: float, share: float
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the summed row losses and the gradients; `share` is the rank's part of what counts once per batch."""
    model = state.model
    values = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        outputs = model(inputs, training=True)
        loss, objective = _losses(state, labels, first_output(outputs))
        for logits in outputs[1:] if isinstance(outputs, (list, tuple)) else ():
            objective += _AUXILIARY_WEIGHT * _losses(state, labels, tf.cast(logits, tf.float32))[1]
        objective /= divisor
        if model.losses:  # a user's regularisers count once per global batch
            objective += tf.add_n(model.losses) * share
        if state.weight_decay:
            kernels = [value for value in values if len(value.shape) > 1]
            objective += tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels]) * (state.weight_decay * share)
        if not state.part.rows:  # nor may what other ranks' normalisation owes to this row be anything but 0
            objective = tf.math.multiply_no_nan(objective, 0.0)
        objective = state.optimizer.scale_loss(objective)
    gradients = tape.gradient(objective, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]


def _losses(state: TrainState, labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the summed row losses without and with label smoothing."""
    rows = row_losses(state.loss, labels, logits)
    plain = tf.reduce_sum(rows)
    if not state.smoothing:
        return plain, plain
    return plain, tf.reduce_sum(smooth(rows, logits, state.smoothing))


class Epoch(Protocol):
    """Trains an epoch, or without `last` steps that others follow: its partial batch, if any, is made in the last call.

    Taken are the order of an epoch (`Shards.order`: int32 [steps, batch] and int32 [partial]) and its `flip_salt`
    (uint32); returned is float32 [steps, and one for the partial batch]: the rank's summed row losses of every step.
    """

    def __call__(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
        """Make the steps of `order`."""


def compile_epoch(state: TrainState, data: RankData, batch: Batch, *, rank: int, drop_remainder: bool) -> Epoch:
    """Return a function that trains one epoch on the rank's rows, which `batch` (`resident_batch`) has."""
    lanes, last = data.shards.lanes(rank), data.shards.partial(rank)
    partial_rows = 0 if drop_remainder else data.shards.remainder

    def compiled(*, ending: bool) -> Any:
        @tf.function(
            input_signature=[
                tf.TensorSpec([None, len(lanes)], tf.int32),
                tf.TensorSpec([len(last)], tf.int32),
                tf.TensorSpec([], tf.uint32),
            ],
            autograph=False,  # which would rewrite all that is called from here: a second of every launch
        )
        def epoch(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
            def whole_step(index: tf.Tensor) -> tf.Tensor:
                return train_step(state, *batch(order, index, salt), lanes, data.shards.batch)

            def partial_step() -> tf.Tensor:
                return train_step(state, *batch(partial[tf.newaxis], tf.constant(0), salt), last, partial_rows)

            return run_steps(state, tf.shape(order)[0], whole_step, partial_step if ending else None)

        return epoch

    whole = compiled(ending=bool(partial_rows))
    whole.get_concrete_function()  # traced now: where ranks were lost, no other waits for that in a step
    part = compiled(ending=False) if partial_rows else whole  # traced when it is first called

    def train(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
        losses: tf.Tensor = (whole if last else part)(order, partial, salt)
        return losses

    return train


def run_steps(
    state: TrainState,
    steps: tf.Tensor,
    whole_step: Callable[[tf.Tensor], tf.Tensor],
    partial_step: Callable[[], tf.Tensor] | None,
) -> tf.Tensor:
    """Make `steps` steps, and one on the partial batch where there is one, with the averages due; for a graph.

    `whole_step` takes the step's number. Both return float32 of one shape, [] or [k]: the result is [steps] or
    [steps, k].
    """
    variables = state.model.trainable_variables
    period = state.synchroniser.policy.period

    def make(begin: tf.Tensor, end: tf.Tensor, results: tf.TensorArray) -> tf.TensorArray:
        def one(index: tf.Tensor, results: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            return index + 1, results.write(index, whole_step(index))

        return tf.while_loop(lambda index, _: index < end, one, (begin, results))[1]

    def average() -> tf.Tensor:
        state.synchroniser.average(variables)
        return tf.constant(True)

    def block(number: tf.Tensor, results: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        results = make(number * period, (number + 1) * period, results)
        average()
        return number + 1, results

    results, whole = tf.TensorArray(tf.float32, size=steps), tf.constant(0)
    if period:
        blocks = steps // period
        results = tf.while_loop(lambda number, _: number < blocks, block, (tf.constant(0), results))[1]
        whole = blocks * period
    result = make(whole, steps, results).stack()
    if partial_step is not None:
        with tf.control_dependencies([result]):  # behind the others, whose end it does not otherwise wait for
            last = partial_step()
        result = tf.concat([result, [last]], axis=0)
    if period is None or (period and partial_step is not None):
        average()
    elif period:  # a condition of the graph, not of Python: the steps are not known when it is built
        tf.cond(whole < steps, average, lambda: tf.constant(False))
    return result


class StreamedEpoch:
    """Trains one epoch on the rank's images; called like the epoch on resident rows (`compile_epoch`).

    It returns float32 [steps, 2]: the rank's summed row losses, and the seconds each step waited for its batch.
    """

    def __init__(self, state: TrainState, data: RankData, *, rank: int, threads: int, drop_remainder: bool) -> None:
        assert data.files is not None
        self._data, self._threads, self._random = data, threads, state.mirror
        self._files = ImageFiles(data.files)
        self._first = data.shards.own_rows(rank).start
        self._batch = len(data.shards.lanes(rank))
        partial_rows = 0 if drop_remainder else data.shards.remainder
        self._partial = len(data.shards.partial(rank)) if partial_rows else 0
        self._loop = _compile_stream(state, data, rank=rank, partial_rows=partial_rows)
        self._part = _compile_stream(state, data, rank=rank, partial_rows=0) if partial_rows else self._loop

    def __call__(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
        """Train on the rows in the given order (`Shards.order`), each cropped and mirrored by `salt`."""
        batches = iter(self._batches(order, partial if last else partial[:0], salt))
        return (self._loop if last else self._part)(batches, tf.shape(order)[0])

    def without_input(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> float:
        """Return the seconds of a step that gets the same decoded batch again and again: input costs nothing.

        The steps do train: the caller restores the variables.
        """
        steps = min(3, len(order))
        decoded = list(self._batches(order[:1], partial, salt))
        given = [*decoded[:1] * steps, *decoded[1:]] if steps else decoded
        batches = tf.data.Dataset.from_generator(lambda: iter(given), output_signature=_specs(self._data))
        begin = time.perf_counter()
        self._loop(iter(batches), tf.constant(steps)).numpy()
        return (time.perf_counter() - begin) / max(1, len(given))

    def _batches(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> tf.data.Dataset:
        last = partial.numpy()[: self._partial]
        visits = np.concatenate([order.numpy().ravel(), last]).astype(np.int64)
        return image_dataset(
            self._files,
            self._data.train_x[visits],
            self._data.train_y[visits],
            visits + self._first,
            batch=self._batch,
            size=self._data.record.features[0],
            threads=self._threads,
            salt=int(salt) if self._random else None,
        )


def _specs(data: RankData) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    return tf.TensorSpec([None, *data.record.features], tf.uint8), tf.TensorSpec([None], tf.int32)


def _compile_stream(state: TrainState, data: RankData, *, rank: int, partial_rows: int) -> Any:
    """Return the compiled loop over an iterator of batches; `partial_rows` are those of all ranks' last batch."""

    @tf.function(input_signature=[tf.data.IteratorSpec(_specs(data)), tf.TensorSpec([], tf.int32)], autograph=False)
    def loop(batches: tf.data.Iterator, steps: tf.Tensor) -> tf.Tensor:
        def step(local: range, global_rows: int) -> tf.Tensor:
            begin = tf.timestamp()
            with tf.control_dependencies([begin]):
                none = tf.zeros([0, *data.record.features], tf.uint8), tf.zeros([0], tf.int32)
                images, labels = batches.get_next() if local else none
            with tf.control_dependencies([images]):
                waited = tf.timestamp() - begin
            images = tf.ensure_shape(images, [len(local), *data.record.features])
            inputs = prepare_input(images, data.shift, data.factor)
            loss = train_step(state, inputs, tf.ensure_shape(labels, [len(local)]), local, global_rows)
            return tf.stack([loss, tf.cast(waited, tf.float32)])

        def whole_step(index: tf.Tensor) -> tf.Tensor:
            return step(data.shards.lanes(rank), data.shards.batch)

        def partial_step() -> tf.Tensor:
            return step(data.shards.partial(rank), partial_rows)

        return run_steps(state, steps, whole_step, partial_step if partial_rows else None)

    return loop
