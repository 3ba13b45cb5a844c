"""Keras layers and losses that depend on the rows of all ranks."""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import tensorflow as tf
from keras import tree
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.layers.layer import Layer
from keras.src.layers.normalization.batch_normalization import BatchNormalization
from keras.src.losses.loss import Loss
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.trainers.compile_utils import CompileLoss

from harness.models.global_batch_layers import batch_moments
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.patch import put, replace, wrapped
from harness.transparent.runtime import Runtime, switched_on

_CORRELATIONS = {"PearsonCorrelation", "ConcordanceCorrelation"}
_MIXING = {"Dice", "dice", "Tversky", "tversky", "Circle", "circle"}  # Keras's own that are no mean over rows


class Layers:
    """Replaces the moments of batch normalisation, and losses; notes the variables that layers make."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._in_loss: ContextVar[bool] = ContextVar("inside a loss", default=False)

    def install(self) -> None:
        """Put the replacements in place."""
        replace(Layer, "add_weight", ("self", "args"), self._add_weight)
        replace(BatchNormalization, "_moments", ("self", "inputs", "mask"), self._moments)
        replace(Loss, "__call__", ("self", "y_true", "y_pred", "sample_weight"), self._loss)
        put(Loss, "__init_subclass__", classmethod(self._subclassed))

    def _add_weight(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        variable = original(*args, **kwargs)
        self._runtime.witness.coarse |= args[0].compute_dtype in ("float16", "bfloat16")
        self._runtime.generation += variable.trainable
        if not variable.trainable:
            self._runtime.variables.add_untrained(variable)
        return variable

    def _moments(
        self, original: Callable[..., Any], layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance over the rows of all ranks."""
        runtime = self._runtime
        trial = runtime.collectives.trial
        # A step that is only to show whether rows are independent uses no statistics of all rows.
        left_out = trial.probe is not None or (trial.coupling is not None and trial.coupling.is_steady)
        values = 0 * inputs if left_out else inputs  # nor does any gradient flow back to them
        if runtime.quiet or not runtime.sync.shares_gradients:
            mean, variance = original(layer, values, mask)
        else:
            means = partial(runtime.collectives.differentiable_mean, label="batch normalisation")
            mean, variance = batch_moments(layer, original, means, values, mask)
        return (0 * mean, 0 * variance + 1) if left_out else (mean, variance)

    def _subclassed(self, kind: Any) -> None:
        """Replace the `__call__` of a loss of the script's own that has one in place of `call`."""
        if "__call__" in vars(kind):
            put(kind, "__call__", wrapped(kind.__call__, self._loss))

    def _loss(self, original: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute a loss, from the rows of all ranks where it is no mean over rows."""
        runtime = self._runtime
        arguments = inspect.signature(original).bind(loss, *args, **kwargs).args[1:]  # targets, predictions, weights
        if self._in_loss.get() or not runtime.sync.shares_gradients or of_rows(loss, arguments[1:]):
            return original(loss, *arguments)
        if runtime.collectives.trial.probe is not None:
            predictions = tree.flatten(arguments[1])
            return tf.add_n([tf.reduce_mean(tf.cast(leaf, loss.dtype)) for leaf in predictions])
        if runtime.quiet:
            return original(loss, *arguments)
        runtime.note(Note(code=NoteCode.LOSS_OF_ALL_ROWS, values={"name": loss.name}))
        with switched_on(self._in_loss):
            return original(loss, *rows_of_all_ranks(runtime, list(arguments), "loss"))


def of_rows(loss: Any, y_pred: Any) -> bool:
    """Tell whether the loss of all rows is the mean of the ranks' losses weighted by rows."""
    if isinstance(loss, CompileLoss):
        return True  # each of its losses is looked at by itself
    if loss.reduction in (None, "none"):
        return True  # the trial finds out what the script makes of the values
    function = loss.fn if isinstance(loss, LossFunctionWrapper) else None
    names = {type(loss).__name__, getattr(function, "__name__", "")}
    if loss.reduction not in ("sum_over_batch_size", "mean") or names & _MIXING or along_rows(loss):
        return False
    if any(get_keras_mask(leaf) is not None for leaf in tree.flatten(y_pred) if leaf is not None):
        return False
    if getattr(loss, "ignore_class", None) is not None:  # it is divided by the number of places that are left
        return False
    return is_keras_object(type(loss)) and (function is None or is_keras_object(function))


def along_rows(thing: Any) -> bool:
    """Tell whether one of Keras's own layers, operations or losses works along the axis of the rows."""
    axis = getattr(thing, "_fn_kwargs", {}).get("axis", getattr(thing, "axis", -1))
    return isinstance(axis, (int, list, tuple)) and 0 in tree.flatten(axis)


def mixes_rows(metric: Any) -> bool:
    """Tell whether one of Keras's own metrics is no mean over rows, such as a correlation."""
    function = getattr(metric, "_fn", None)
    names = {type(metric).__name__, getattr(function, "__name__", "")}
    return bool(names & (_MIXING | _CORRELATIONS)) or along_rows(metric)


def is_keras_object(thing: Any) -> bool:
    """Tell whether a class or function is one of Keras's own."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] == "keras"


def rows_of_all_ranks(runtime: Runtime, structure: Any, label: str) -> Any:
    """Return `structure` with the rows of all ranks in place of this rank's; masks go with their tensors.

    Scalars, and tensors of another length than the first, stay as they are.
    """
    leaves = tree.flatten(structure)
    tensors = [None if leaf is None else tf.convert_to_tensor(leaf) for leaf in leaves]
    with_rows = {i: tensor for i, tensor in enumerate(tensors) if tensor is not None and tensor.shape.rank}
    length = next((tensor.shape[0] for tensor in with_rows.values()), None)
    chosen = [i for i, tensor in with_rows.items() if length is None or tensor.shape[0] in (None, length)]
    if not chosen:
        return structure
    masks = {i: get_keras_mask(leaves[i]) for i in chosen}
    masked = [i for i in chosen if masks[i] is not None]
    rows = runtime.collectives.gather_rows([*(tensors[i] for i in chosen), *(masks[i] for i in masked)], label)
    for i, tensor in zip(chosen, rows, strict=False):
        leaves[i] = tensor
    for i, mask in zip(masked, rows[len(chosen) :], strict=True):
        set_keras_mask(leaves[i], mask)
    return tree.pack_sequence_as(structure, leaves)
