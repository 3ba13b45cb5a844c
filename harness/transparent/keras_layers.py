"""Keras layers and losses that look beyond a rank's own rows."""

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

from harness.models.ranks import batch_moments
from harness.transparent.patch import put, replace, wrapped
from harness.transparent.runtime import Runtime, switched_on

_CORRELATIONS = {"PearsonCorrelation", "ConcordanceCorrelation"}
_MIXING = {"Dice", "dice", "Tversky", "tversky", "Circle", "circle"}  # Keras's own that are no mean over rows


class Layers:
    """Replaces batch normalisation's moments and losses; sees what else layers hold."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._in_loss: ContextVar[bool] = ContextVar("inside a loss", default=False)

    def install(self) -> None:
        """Put the replacements in place."""
        replace(Layer, "add_weight", ("self", "args"), self._add_weight)
        replace(BatchNormalization, "_moments", ("self", "inputs", "mask"), self._moments)
        replace(Loss, "__call__", ("self", "y_true", "y_pred", "sample_weight"), self._loss)
        Loss.__init_subclass__ = classmethod(self._subclassed)

    def _add_weight(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        variable = original(*args, **kwargs)
        self._runtime.witness.coarse |= args[0].compute_dtype in ("float16", "bfloat16")
        self._runtime.generation += variable.trainable
        if not variable.trainable:
            self._runtime.keep(variable)
        return variable

    def _moments(
        self, original: Callable[..., Any], layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        runtime, trial = self._runtime, self._runtime.collectives.trial
        # Of a step that is only to show if rows are independent, statistics of all rows are left out.
        unseen = trial.probe is not None or (trial.shadow is not None and trial.shadow.steady)
        seen = 0 * inputs if unseen else inputs  # nor does anything flow back to them
        if runtime.quiet or not runtime.sync.shares_gradients:
            mean, variance = original(layer, seen, mask)
        else:
            means = partial(runtime.collectives.differentiable_mean, label="batch normalisation")
            mean, variance = batch_moments(layer, original, means, seen, mask)
        return (0 * mean, 0 * variance + 1) if unseen else (mean, variance)

    def _subclassed(self, kind: Any) -> None:
        """Treat a loss of the script's own alike that has a `__call__` in the place of `call`."""
        if "__call__" in vars(kind):
            put(kind, "__call__", wrapped(kind.__call__, self._loss))

    def _loss(self, original: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
        runtime = self._runtime
        _, *given = inspect.signature(original).bind(loss, *args, **kwargs).args  # targets, predictions, weights
        if self._in_loss.get() or not runtime.sync.shares_gradients or of_rows(loss, given[1:]):
            return original(loss, *given)
        if runtime.collectives.trial.probe is not None:
            return tf.add_n([tf.reduce_mean(tf.cast(leaf, loss.dtype)) for leaf in tree.flatten(given[1])])
        if runtime.quiet:
            return original(loss, *given)
        runtime.note(f"loss '{loss.name}' is computed from the rows of all ranks")
        with switched_on(self._in_loss):
            return original(loss, *rows_of_all_ranks(runtime, given, "loss"))


def of_rows(loss: Any, y_pred: Any) -> bool:
    """Tell whether the rank's own rows are enough: the loss of all rows is the mean of the ranks' weighted by rows."""
    if isinstance(loss, CompileLoss):
        return True  # each of its losses is asked
    if loss.reduction in (None, "none"):
        return True  # what the script makes of the values, the trial finds out
    function = loss.fn if isinstance(loss, LossFunctionWrapper) else None
    names = {type(loss).__name__, getattr(function, "__name__", "")}
    if loss.reduction not in ("sum_over_batch_size", "mean") or names & _MIXING or along_rows(loss):
        return False
    if any(get_keras_mask(leaf) is not None for leaf in tree.flatten(y_pred) if leaf is not None):
        return False
    return is_keras_object(type(loss)) and (function is None or is_keras_object(function))


def along_rows(thing: Any) -> bool:
    """Tell whether one of Keras's own layers, operations or losses works along the axis of the rows."""
    axis = getattr(thing, "_fn_kwargs", {}).get("axis", getattr(thing, "axis", -1))
    return isinstance(axis, (int, list, tuple)) and 0 in tree.flatten(axis)


def mixes_rows(metric: Any) -> bool:
    """Tell whether one of Keras's own metrics takes the mean of what is not of single rows, as a correlation is."""
    function = getattr(metric, "_fn", None)
    names = {type(metric).__name__, getattr(function, "__name__", "")}
    return bool(names & (_MIXING | _CORRELATIONS)) or along_rows(metric)


def is_keras_object(thing: Any) -> bool:
    """Tell whether a class or function is one of Keras's own."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] == "keras"


def rows_of_all_ranks(runtime: Runtime, structure: Any, label: str) -> Any:
    """Return `structure` with the rows of all ranks in the place of the own; masks go with their tensors.

    Scalars, and tensors of another length than the first (the predictions, say), are left alone.
    """
    leaves = tree.flatten(structure)
    given = [None if leaf is None else tf.convert_to_tensor(leaf) for leaf in leaves]
    known = next((leaf.shape[0] for leaf in given if leaf is not None and leaf.shape.rank), None)
    chosen = [
        i
        for i, leaf in enumerate(given)
        if leaf is not None and leaf.shape.rank and (known is None or leaf.shape[0] in (None, known))
    ]
    if not chosen:
        return structure
    masks = {i: get_keras_mask(leaves[i]) for i in chosen}
    masked = [i for i in chosen if masks[i] is not None]
    rows = runtime.collectives.whole([*(given[i] for i in chosen), *(masks[i] for i in masked)], label)
    for i, tensor in zip(chosen, rows, strict=False):
        leaves[i] = tensor
    for i, mask in zip(masked, rows[len(chosen) :], strict=True):
        set_keras_mask(leaves[i], mask)
    return tree.pack_sequence_as(structure, leaves)
