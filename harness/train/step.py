"""One training step: loss per row, forward, backward, synchronisation, update."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.comm.policies import SyncPolicy
from harness.train.optimizer import update

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


def prepare_input(rows: tf.Tensor, shift: Floats | None, factor: Floats | None) -> tf.Tensor:
    """Return the network's input float32: `rows` as they are, or (rows - shift) * factor for uint8 images."""
    if shift is None or factor is None:
        return rows
    if shift.size == 1:  # one pass over the batch instead of three, which a small network feels
        low, high = (float((value - shift.item()) * factor.item()) for value in (0, 255))
        return tf.quantization.dequantize(tf.bitcast(rows, tf.quint8), low, high, mode="MIN_COMBINED")
    return (tf.cast(rows, tf.float32) - shift) * factor


_AUXILIARY_WEIGHT = 0.3  # of the auxiliary classifiers' losses (Szegedy et al. 2014, section 5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainee:
    """What one rank trains: the replica, its optimizer, the loss and the policy that keeps it in step.

    `mirror` has every second image flipped at random (`harness.train.loop`). `smoothing` and `weight_decay` as
    in `Workload`; `xla` compiles forward and backward.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    loss: str
    policy: SyncPolicy
    mirror: bool
    smoothing: float = 0.0
    weight_decay: float = 0.0
    xla: bool = False


def train_step(trainee: Trainee, inputs: tf.Tensor, labels: tf.Tensor, local_rows: int, global_rows: int) -> tf.Tensor:
    """Make one step and return the rank's summed row losses, without smoothing, auxiliary losses and L2.

    `inputs` float32 [local_rows, *features], `labels` int32 [local_rows]; `global_rows` are those of all ranks.
    """
    divisor = float(trainee.policy.divisor(local_rows, global_rows))

    def differentiate(rows: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return _differentiate(trainee, rows, targets, divisor, local_rows / divisor)

    if trainee.xla:
        differentiate = tf.function(differentiate, jit_compile=True, autograph=False)
    loss, gradients = differentiate(inputs, labels)
    update(trainee.optimizer, trainee.policy, gradients, trainee.model.trainable_variables)
    return loss


def first_output(outputs: Any) -> tf.Tensor:
    """Return the network's own logits, float32, whether or not it has auxiliary classifiers."""
    return tf.cast(outputs[0] if isinstance(outputs, (list, tuple)) else outputs, tf.float32)


def _differentiate(
    trainee: Trainee, inputs: tf.Tensor, labels: tf.Tensor, divisor: float, share: float
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the summed row losses and the gradients; `share` is the rank's part of what counts once per batch."""
    model = trainee.model
    values = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        outputs = model(inputs, training=True)
        loss, objective = _losses(trainee, labels, first_output(outputs))
        for logits in outputs[1:] if isinstance(outputs, (list, tuple)) else ():
            objective += _AUXILIARY_WEIGHT * _losses(trainee, labels, tf.cast(logits, tf.float32))[1]
        objective /= divisor
        if model.losses:  # a user's regularisers count once per global batch
            objective += tf.add_n(model.losses) * share
        if trainee.weight_decay:
            kernels = [value for value in values if len(value.shape) > 1]
            objective += tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels]) * (trainee.weight_decay * share)
        objective = trainee.optimizer.scale_loss(objective)
    gradients = tape.gradient(objective, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]


def _losses(trainee: Trainee, labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the summed row losses without and with label smoothing."""
    rows = row_losses(trainee.loss, labels, logits)
    plain = tf.reduce_sum(rows)
    if not trainee.smoothing:
        return plain, plain
    return plain, tf.reduce_sum(smooth(rows, logits, trainee.smoothing))
