"""Where gradients are averaged: as a tape yields them, or on their way into an optimizer; and weights after a step.

What a script does to the gradients of its tape, clipping for instance, it then does to those of all ranks, as one
process would. Keras's own training step takes its gradients from a tape too.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from tensorflow.python.eager import record

from harness.comm.turn_pass import pass_turn
from harness.transparent.batch_rows import own_variable
from harness.transparent.patch import put, replace, wrapped
from harness.transparent.preflight import compare, model_facts
from harness.transparent.probe import GradientProbe
from harness.transparent.replica_variables import initialised
from harness.transparent.runtime import Runtime, switched_on


class GradientAverager:
    """Averages gradients, or weights, as the sync policy says; the ranks are weighted by their rows."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._counters: dict[int, tf.Variable] = {}
        self._taped: dict[int, weakref.ref[Any]] = {}
        self._begun: dict[int, weakref.ref[Any]] = {}
        self._by_row: ContextVar[bool] = ContextVar("gradients of single rows", default=False)

    def install(self) -> None:
        """Replace the tape's `gradient`, and `apply` of Keras's base optimizer and of its loss scaler.

        Every Keras optimizer, `apply_gradients` and `fit` go through one of the two. The loss scaler looks for
        infinities before it calls the optimizer inside it: averaged before that, they are seen by all ranks or none.
        """
        replace(tf.GradientTape, "gradient", ("self", "target", "sources"), self._gradient)
        for name in ("jacobian", "batch_jacobian"):
            replace(tf.GradientTape, name, ("self", "target"), self._jacobian)
        for name in ("vectorized_map", "map_fn"):
            put(tf, name, wrapped(getattr(tf, name), _maker_of_rows(self._by_row)))
        replace(BaseOptimizer, "apply", ("self", "grads", "trainable_variables"), self._apply)
        replace(LossScaleOptimizer, "apply", ("self", "grads", "trainable_variables"), self._apply)

    def _is_weight(self, source: Any) -> bool:
        """Tell whether the gradient of a `source` is one of all rows, and not one for each row."""
        is_number = isinstance(source, (tf.Variable, keras.Variable)) and source.dtype != "string"
        return is_number and not self._runtime.variables.is_of_rows(source)

    def _jacobian(
        self, original: Callable[..., Any], tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Take gradients of single rows; what the script makes of them is averaged on its way to the weights."""
        variables = [source for source in tf.nest.flatten(sources) if self._is_weight(source)]
        if variables and not self._runtime.quiet:
            self.begin(variables)
            for variable in variables:
                self._taped.pop(id(variable), None)
        with switched_on(self._by_row):
            return original(tape, target, sources, *args, **kwargs)

    def _gradient(
        self, original: Callable[..., Any], tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Take gradients from a tape: those of weights are averaged over the ranks."""
        gradients = original(tape, target, sources, *args, **kwargs)
        if self._by_row.get():
            return gradients
        runtime = self._runtime
        trial = runtime.collectives.trial
        flat = tf.nest.flatten(gradients)
        flat_sources = tf.nest.flatten(sources)
        chosen = [i for i, source in enumerate(flat_sources) if self._is_weight(source) and flat[i] is not None]
        if trial.probe is not None and chosen:
            trial.probe.taped |= {id(flat_sources[i]) for i in chosen}
            owner = trial.owner(flat_sources[chosen[0]])
            return tf.nest.pack_sequence_as(sources, trial.probe.taken(owner, flat))
        if runtime.quiet or not runtime.sync.shares_gradients or not chosen:
            return gradients
        variables = [flat_sources[i] for i in chosen]
        runtime.count_step(variables[0])
        self.begin(variables)
        if trial.coupling is not None and runtime.world.rank:
            trial.coupling.take(trial.owner(variables[0]), tape, variables, [flat[i] for i in chosen])
        losses = [target] if self._may_be_printed(tape, target) else []
        means = self._means([flat[i] for i in chosen], variables, *losses)
        if losses:
            overwrite(target, means.pop())
        for i, mean in zip(chosen, means, strict=True):
            flat[i] = mean
        self.averaged(variables)
        return tf.nest.pack_sequence_as(sources, flat)

    def _may_be_printed(self, tape: Any, target: Any) -> bool:
        """Tell whether `target` is a loss that an eager loop may print or add up."""
        is_number = isinstance(target, tf.Tensor) and target.shape.rank == 0 and target.dtype.is_floating
        in_called_step = self._runtime.collectives.trial.goes_on and self._runtime.calls
        return bool(is_number and tf.executing_eagerly() and not (tape._persistent or in_called_step))

    def begin(self, variables: Sequence[Any]) -> None:
        """Give `variables`, which the script may update by hand, rank 0's values, and remember them for the comparison.

        Variables without values are new in the first trace of a `tf.function`, which is traced once more.
        """
        fresh = [variable for variable in variables if not _contains(self._begun, variable)]
        if fresh and initialised(fresh):
            compare(self._runtime, model_facts(None, fresh))
            self._runtime.variables.start_equal(fresh, "initial weights")
            self._runtime.variables.remember(fresh)
            self._begun |= {id(variable): weakref.ref(variable) for variable in fresh}

    def _apply(
        self,
        original: Callable[..., Any],
        optimizer: Any,
        grads: Sequence[Any],
        trainable_variables: Sequence[Any] | None = None,
    ) -> Any:
        """Apply gradients: those that no tape has averaged are averaged before."""
        runtime = self._runtime
        grads = list(grads)
        probe = runtime.collectives.trial.probe
        if probe is not None:
            self._note_applied(probe, optimizer, grads, trainable_variables)
            return None
        if runtime.quiet or not grads:
            return original(optimizer, grads, trainable_variables)
        variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        runtime.count_step(variables[0])
        # Variables made in the first trace of a tf.function have no values yet: it is traced once more.
        if initialised(variables) and runtime.is_new(optimizer):
            compare(runtime, model_facts(optimizer, variables))
            self.begin(variables)
        averaged = self.gradients(grads, variables)
        with runtime.quietly():
            result = original(optimizer, averaged, None if trainable_variables is None else variables)
        self.after_step(optimizer, variables)
        return result

    def _note_applied(
        self, probe: GradientProbe, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any] | None
    ) -> None:
        """Note what a probed step applies that no tape has yielded, such as a mean of gradients of single rows."""
        applied = list(optimizer._trainable_variables if variables is None else variables)
        untaped = [
            (gradient, variable)
            for gradient, variable in zip(gradients, applied, strict=False)
            if gradient is not None and id(variable) not in probe.taped
        ]
        if untaped:
            owner = self._runtime.collectives.trial.owner(untaped[0][1])
            probe.gradients.append((owner, [gradient for gradient, _ in untaped]))

    def gradients(self, gradients: Sequence[Any], variables: Sequence[Any], *, of_rank: bool = False) -> list[Any]:
        """Return the gradients to apply, as the sync policy says. None stays None.

        What has come from a tape is of all ranks already; with `of_rank` all `gradients` are of this rank's rows.
        """
        self._runtime.begin_training()
        policy = self._runtime.sync
        if not policy.shares_gradients:
            pass_turn(gradients)
            return policy.gradients(gradients, self._runtime.collectives.mean)
        present = [
            i
            for i, gradient in enumerate(gradients)
            if gradient is not None and (of_rank or not _contains(self._taped, variables[i]))
        ]
        if not present:
            return list(gradients)
        means = self._means([gradients[i] for i in present], [variables[i] for i in present])
        averaged = dict(zip(present, means, strict=True))
        return [averaged.get(i, gradient) for i, gradient in enumerate(gradients)]

    def averaged(self, variables: Sequence[Any]) -> None:
        """Note that the script's gradients of `variables` are of all ranks already."""
        for variable in variables:
            self._taped[id(variable)] = weakref.ref(variable)

    def _means(self, gradients: Sequence[Any], variables: Sequence[Any], *more: tf.Tensor) -> list[Any]:
        """Return means over the ranks of gradients and of `more` tensors. Sparse gradients stay sparse."""
        runtime = self._runtime
        collectives = runtime.collectives
        owner = collectives.trial.owner(variables[0])
        pass_turn(gradients)
        dense = [i for i, gradient in enumerate(gradients) if not isinstance(gradient, tf.IndexedSlices)]
        values = [_shaped(tf.convert_to_tensor(gradients[i]), variables[i].shape) for i in dense]
        taped = record.could_possibly_record() or not runtime.fused  # only then does anything flow back
        mean = functools.partial(collectives.differentiable_mean if taped else collectives.mean, owner=owner)
        collectives.batch_rows = None
        means = self._runtime.sync.gradients([*values, *more], mean) if values or more else []
        dense_means = dict(zip(dense, means, strict=False))
        results = [
            dense_means[i] if i in dense_means else collectives.slices(gradient, "sparse gradient", owner)
            for i, gradient in enumerate(gradients)
        ]
        if not runtime.fused:
            training = collectives.trial.training
            results = runtime.witness.gradients(results, variables, collectives.batch_rows, training)
        return [*results, *means[len(dense) :]]

    def after_step(self, owner: object, variables: Sequence[Any]) -> None:
        """Average the weights at the end of the sync policy's period; `owner` is the optimizer whose step it was."""
        period = self._runtime.sync.period
        if not period:
            return
        if id(owner) not in self._counters:
            self._counters[id(owner)] = own_variable(0, "harness_steps")
        due = tf.equal(self._counters[id(owner)].assign_add(1) % period, 0)
        tf.cond(due, lambda: self._average(variables), lambda: tf.constant(0))

    def _average(self, variables: Sequence[Any]) -> tf.Tensor:
        with self._runtime.rows.batch_of(None):
            values = [tf.convert_to_tensor(variable) for variable in variables]
            weights = self._runtime.sync.weights(values, self._runtime.collectives.mean)
        for variable, value in zip(variables, weights, strict=True):
            variable.assign(value)
        return tf.constant(0)


def _contains(references: dict[int, weakref.ref[Any]], variable: Any) -> bool:
    """Tell whether `variable` is among those of `references`, which are by id: most variables cannot be keys."""
    reference = references.get(id(variable))
    return reference is not None and reference() is variable


def _shaped(gradient: tf.Tensor, shape: Any) -> tf.Tensor:
    """Return `gradient` with its variable's `shape` as its static shape."""
    return gradient if gradient.shape.is_fully_defined() else tf.ensure_shape(gradient, shape)


def _maker_of_rows(switch: ContextVar[bool]) -> Callable[..., Any]:
    """Return what runs a function of TensorFlow's that makes something of every row, with `switch` on."""

    def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with switched_on(switch):
            return original(*args, **kwargs)

    return run


def overwrite(number: tf.Tensor, value: tf.Tensor) -> None:
    """Write another value into the memory of an eager scalar, for whoever holds it.

    An eager step has made its loss before it asks for the gradient. What the script then prints or adds up is the same
    tensor, and there is no other way to have it hold the loss of all ranks' rows.
    """
    with tf.device(number.device):
        tf.raw_ops.InplaceUpdate(x=tf.reshape(number, [1]), i=[0], v=tf.reshape(value, [1]))
