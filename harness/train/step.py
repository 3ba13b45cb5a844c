"""One training step: forward, backward, sum over the ranks, update."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.comm.synchroniser import Synchroniser
from harness.comm.turn_pass import pass_turn
from harness.models.global_batch_layers import BatchPart
from harness.train.optimizer import only_steps
from harness.train.step_flops import StepFlops

Floats = npt.NDArray[np.float32]


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
    drawn = None if state.xla_draw and local else draw()

    def forward_and_backward() -> tuple[tf.Tensor, list[tf.Tensor]]:
        inputs, labels = drawn or draw()
        loss, gradients = _forward_and_backward(state, inputs, labels, divisor, len(local) / divisor)
        state.flops.note([loss, *gradients], len(local))
        return loss, gradients

    if local and state.xla_update and state.synchroniser.changes_no_gradients:
        return _step_in_one_program(state, forward_and_backward)
    if not local:
        loss, gradients = _without_rows(state, drawn or draw(), divisor)
    elif state.xla:
        loss, gradients = _compiled(forward_and_backward)()
    else:
        loss, gradients = forward_and_backward()
    sum_and_update(state.optimizer, state.synchroniser, gradients, state.model.trainable_variables, state.xla_update)
    return loss


def _forward_and_backward(
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


def sum_and_update(
    optimizer: keras.optimizers.Optimizer,
    synchroniser: Synchroniser,
    gradients: list[tf.Tensor],
    variables: list[keras.Variable],
    xla_update: bool = False,
) -> None:
    """Sum the ranks' `gradients` as the sync policy says, and update the weights with the result.

    With one of our own optimizers the reduction itself updates the weights, as it goes through the sums. `xla_update`:
    by one operation that XLA has compiled for all variables.
    """
    pass_turn(gradients)
    in_host_memory = not tf.config.list_logical_devices("GPU")  # as the reduction's own update needs them
    if synchroniser.updater is not None and in_host_memory and only_steps(optimizer, variables):
        synchroniser.updater.update(optimizer.descent(variables), variables, gradients, "gradients")
        optimizer.iterations.assign_add(1)
        return
    averages = synchroniser.gradients(gradients)

    def update() -> None:
        optimizer.apply(averages, variables)

    if xla_update:
        _compiled(update)()
    else:
        update()


def _step_in_one_program(
    state: TrainState, forward_and_backward: Callable[[], tuple[tf.Tensor, list[tf.Tensor]]]
) -> tf.Tensor:
    """Make a step of one rank, the update too, in what XLA compiles; return the loss."""

    def step() -> tf.Tensor:
        loss, gradients = forward_and_backward()
        state.optimizer.apply(gradients, state.model.trainable_variables)
        return loss

    loss: tf.Tensor = _compiled(step)()
    pass_turn([loss])
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
    loss, gradients = _forward_and_backward(state, row, tf.zeros([1], labels.dtype), divisor, 0.0)
    gradients = [tf.zeros_like(gradient) for gradient in gradients]
    for variable, value in zip(state.statistics, before, strict=True):
        variable.assign(value)
    return tf.zeros_like(loss), gradients


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


def first_output(outputs: Any) -> tf.Tensor:
    """Return the network's own logits, float32, whether or not it has auxiliary classifiers."""
    return tf.cast(outputs[0] if isinstance(outputs, (list, tuple)) else outputs, tf.float32)


def _losses(state: TrainState, labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the summed row losses without and with label smoothing."""
    rows = row_losses(state.loss, labels, logits)
    plain = tf.reduce_sum(rows)
    if not state.smoothing:
        return plain, plain
    return plain, tf.reduce_sum(smooth(rows, logits, state.smoothing))
