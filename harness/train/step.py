"""One training step: batch, loss per row, forward, backward, synchronisation, update; and an epoch as one graph.

Of rows on the device, or of images whose batches are decoded while it runs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.comm.synchroniser import Synchroniser
from harness.comm.turn_pass import pass_turn
from harness.models.global_batch_layers import BatchPart
from harness.train.optimizer import update

# Floating-point operations of a traced computation: those of its matrix products and convolutions.
#
# A multiplication and an addition are two operations. What is element by element is left out, as is usual for the
# utilisation of a device (Chowdhery et al. 2022, "PaLM", appendix B); a convolution's padding counts like values.


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopCount:
    """The operations that were counted, and the kinds of TensorFlow's operations that could not be."""

    flops: float = 0.0
    uncounted: tuple[str, ...] = ()


@dataclass(slots=True)
class StepFlops:
    """What was counted of a step when it was traced: `per_row`, 0 before that, and what could not be counted."""

    per_row: float = 0.0
    uncounted: tuple[str, ...] = ()

    def note(self, outputs: Sequence[tf.Tensor], rows: int) -> None:
        """Count a step of `rows` rows that makes `outputs`, its loss and gradients; nothing outside of a graph."""
        if tf.executing_eagerly():
            return
        counted = count_flops(outputs)
        self.per_row = counted.flops / rows
        self.uncounted = counted.uncounted


def count_flops(outputs: Sequence[tf.Tensor]) -> FlopCount:
    """Return the floating-point operations that make `outputs`, tensors of one graph, with those of called functions.

    What else the graph has is left out, as it is when the graph is run: the gradient of a convolution always comes
    with that of its input, which a first layer does not need.
    """
    flops = 0.0
    uncounted: dict[str, None] = {}
    for operation in _needed(outputs):
        counted = _count(operation)
        flops += counted.flops
        uncounted.update(dict.fromkeys(counted.uncounted))
    return FlopCount(flops=flops, uncounted=tuple(uncounted))


def _needed(outputs: Sequence[tf.Tensor]) -> set[tf.Operation]:
    """Return the operations of the graph on which `outputs` depend."""
    waiting = [tensor.op for tensor in outputs]
    needed = set[tf.Operation]()
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return needed


def _count(operation: tf.Operation) -> FlopCount:
    if operation.type in _CALLS:
        return _functions_of(operation, ["f"])
    if operation.type in _CONTROL:
        inside = _functions_of(operation, _CONTROL[operation.type])
        has_work = bool(inside.flops or inside.uncounted)  # how often it is done is not known before
        return FlopCount(uncounted=(operation.type,) if has_work else ())
    if operation.type.startswith("CudnnRNN"):
        return FlopCount(uncounted=(operation.type,))
    rule = _RULES.get(operation.type)
    if rule is None:
        return FlopCount()
    flops = rule(operation)
    return FlopCount(uncounted=(operation.type,)) if flops is None else FlopCount(flops=flops)


def _functions_of(operation: tf.Operation, attributes: Sequence[str]) -> FlopCount:
    """Return what is in the functions that the `attributes` of an operation name."""
    outputs = []
    for attribute in attributes:
        value = operation.get_attr(attribute)
        for function in value if isinstance(value, list) else [value]:
            outputs += operation.graph._get_function(function.name).graph.outputs
    return count_flops(outputs)


def _size(shape: Any) -> float:
    """Return the number of elements of a shape, NaN where it is not known."""
    count = tf.TensorShape(shape).num_elements()
    return math.nan if count is None else float(count)


def _known(flops: float) -> float | None:
    return None if math.isnan(flops) else flops


def _matrix_product(operation: tf.Operation) -> float | None:
    is_batched = operation.type != "MatMul"
    is_transposed = operation.get_attr("adj_x" if is_batched else "transpose_a")
    left = operation.inputs[0].shape
    if left.rank is None or left.rank < 2:
        return None
    inner = left[-2 if is_transposed else -1]
    return _known(2 * _size(operation.outputs[0].shape) * _size([inner]))


def _convolution(operation: tf.Operation) -> float | None:
    return _by_filter(operation.outputs[0].shape, operation.inputs[1].shape)


def _convolution_to_input(operation: tf.Operation) -> float | None:
    return _by_filter(operation.inputs[2].shape, operation.inputs[1].shape)


def _convolution_to_filter(operation: tf.Operation) -> float | None:
    return _by_filter(operation.inputs[2].shape, operation.outputs[0].shape)


def _by_filter(values: tf.TensorShape, kernel: tf.TensorShape) -> float | None:
    """Return the operations of a convolution that gives, or takes, `values`: each meets one output's filter."""
    return None if kernel.rank is None else _known(2 * _size(values) * _size(kernel[:-1]))


def _depthwise(operation: tf.Operation) -> float | None:
    return _by_window(operation.outputs[0].shape, operation.inputs[1].shape)


def _depthwise_to_input(operation: tf.Operation) -> float | None:
    return _by_window(operation.inputs[2].shape, operation.inputs[1].shape)


def _depthwise_to_filter(operation: tf.Operation) -> float | None:
    return _by_window(operation.inputs[2].shape, operation.outputs[0].shape)


def _by_window(values: tf.TensorShape, kernel: tf.TensorShape) -> float | None:
    """Return the operations of a convolution that takes every channel for itself."""
    return None if kernel.rank is None else _known(2 * _size(values) * _size(kernel[:2]))


def _einsum(operation: tf.Operation) -> float | None:
    """Return two operations for each combination of the indices of two tensors."""
    equation = operation.get_attr("equation").decode()
    terms = equation.partition("->")[0].split(",")
    if len(terms) != 2:
        return 0.0 if len(terms) == 1 else None
    sizes: dict[str, float] = {}
    for term, tensor in zip(terms, operation.inputs, strict=True):
        if "." in term or tensor.shape.rank != len(term):
            return None
        sizes |= {index: _size([length]) for index, length in zip(term, tensor.shape, strict=True)}
    return _known(2 * math.prod(sizes.values()))


_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_CONTROL = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": ("body",),
    "StatelessWhile": ("body",),
}
_RULES: dict[str, Callable[[tf.Operation], float | None]] = {
    "MatMul": _matrix_product,
    "BatchMatMul": _matrix_product,
    "BatchMatMulV2": _matrix_product,
    "BatchMatMulV3": _matrix_product,
    "Einsum": _einsum,
    "Conv2D": _convolution,
    "Conv2DBackpropInput": _convolution_to_input,
    "Conv2DBackpropFilter": _convolution_to_filter,
    "Conv3D": _convolution,
    "Conv3DBackpropInputV2": _convolution_to_input,
    "Conv3DBackpropFilterV2": _convolution_to_filter,
    "DepthwiseConv2dNative": _depthwise,
    "DepthwiseConv2dNativeBackpropInput": _depthwise_to_input,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_to_filter,
}


Floats = npt.NDArray[np.float32]


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
    forward and backward, whose operations `flops` has when a step has been traced; with `xla_draw` the batch is made in
    what is compiled, with `xla_update` the optimizer's step too.
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
    xla_draw: bool = False
    xla_update: bool = False
    flops: StepFlops = field(default_factory=StepFlops)


Draw = Callable[[], tuple[tf.Tensor, tf.Tensor]]
"""Makes the network's input (float32 [rows, *features]) and labels (int32 [rows]) of a step, in the graph around it."""


def train_step(state: TrainState, draw: Draw, local: range, global_rows: int) -> tf.Tensor:
    """Make one step and return the rank's summed row losses, without smoothing, auxiliary losses and L2.

    `draw` makes rows `local` of a global batch of `global_rows`. A rank without rows makes the same calls on a row of
    zeros that counts nothing, since many of TensorFlow's operations cannot do with no rows: its gradients are zeros and
    its statistics stay as they were.
    """
    state.part.first = local.start
    state.part.rows = len(local)
    divisor = float(state.synchroniser.divisor(len(local), global_rows))
    variables = state.model.trainable_variables
    drawn = None if state.xla_draw and local else draw()

    def differentiate() -> tuple[tf.Tensor, list[tf.Tensor]]:
        inputs, labels = drawn or draw()
        loss, gradients = _differentiate(state, inputs, labels, divisor, len(local) / divisor)
        state.flops.note([loss, *gradients], len(local))
        return loss, gradients

    def make_step() -> tf.Tensor:
        loss, gradients = differentiate()
        state.optimizer.apply(gradients, variables)
        return loss

    if local and state.xla_update and state.synchroniser.changes_no_gradients:
        loss = _compiled(make_step)()
        pass_turn([loss])
        return loss
    if local:
        loss, gradients = _compiled(differentiate)() if state.xla else differentiate()
    else:
        loss, gradients = _without_rows(state, drawn or draw(), divisor)
    update(state.optimizer, state.synchroniser, gradients, variables, compiled=state.xla_update)
    return loss


def _compiled(function: Callable[[], Any]) -> Any:
    """Return `function` as one that XLA compiles; what it takes of the graph around it becomes its input."""
    return tf.function(function, jit_compile=True, autograph=False)


def _without_rows(
    state: TrainState, drawn: tuple[tf.Tensor, tf.Tensor], divisor: float
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return loss and gradients of no rows, all zeros, in the shapes and types of those of the rows `drawn`."""
    inputs, labels = drawn
    before = [tf.identity(variable.value) for variable in state.statistics]
    row = tf.zeros([1, *inputs.shape[1:]])
    loss, gradients = _differentiate(state, row, tf.zeros([1], labels.dtype), divisor, 0.0)
    gradients = [tf.zeros_like(gradient) for gradient in gradients]
    for variable, value in zip(state.statistics, before, strict=True):
        variable.assign(value)
    return tf.zeros_like(loss), gradients


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
