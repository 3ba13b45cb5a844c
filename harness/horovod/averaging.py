"""Gradients of all ranks: tapes and optimizers that average theirs, in one native sum a step."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from harness.base.errors import UserError
from harness.comm.turn_pass import pass_turn
from harness.horovod.not_offered import not_offered, refuse_arguments
from harness.horovod.operations import (
    Average,
    Compression,
    NativeSum,
    gathered_slices,
    grouped_allreduce,
    native_sum,
    refuse_xla,
)
from harness.horovod.ranks import current_ranks, size

trained: dict[int, Any] = {}  # variables whose gradients all ranks average, by id: for the proof that they are equal


class Averaging:
    """How one tape's or optimizer's gradients are averaged.

    Raises:
        ValueError: settings that exclude each other.
    """

    def __init__(
        self,
        name: str,
        *,
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
    ) -> None:
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        self.name = name
        self._compression = compression
        self._op = op
        self._as_dense = sparse_as_dense

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients to step with; None stays None."""
        if size() == 1:
            return list(gradients)
        if not tf.executing_eagerly():
            refuse_xla()
        pass_turn(gradients)
        results = list(gradients)
        dense = []
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if isinstance(gradient, tf.IndexedSlices) and not self._as_dense:
                results[i] = gathered_slices(gradient, self._op, f"{self.name}, sparse gradient")
            else:
                dense.append(i)
        values = [tf.ensure_shape(tf.convert_to_tensor(gradients[i]), variables[i].shape) for i in dense]
        for i, total in zip(dense, self._sums(values), strict=True):
            results[i] = total
        if tf.compat.v1.executing_eagerly_outside_functions():
            trained.update((id(variables[i]), variables[i]) for i in dense)
        return results

    def _sums(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        if not values:
            return []
        if native_sum(self._op, values) is NativeSum.NONE:
            return grouped_allreduce(values, op=self._op, compression=self._compression, name=self.name)
        scale = 1 / size() if self._op == Average else 1.0
        packed = [self._compression.compress(value) for value in values]
        half = self._compression is Compression.fp16
        sums = current_ranks().sums.sum([tensor for tensor, _ in packed], self.name, scale, half=half)
        return [self._compression.decompress(total, ctx) for total, (_, ctx) in zip(sums, packed, strict=True)]


class Accumulation:
    """Gradients added up over `passes` steps before they are averaged; `counter` int32 is how many there are."""

    def __init__(self, passes: int, averaging: Averaging, as_mean: bool, as_dense: bool) -> None:
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False)
        self._passes = passes
        self._averaging = averaging
        self._as_mean = as_mean
        self._as_dense = as_dense
        self._sums: dict[int, tf.Variable] = {}

    def reset(self) -> None:
        """Begin anew."""
        for variable in (self.counter, *self._sums.values()):
            variable.assign(tf.zeros_like(variable))

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return this rank's sums so far, or after the last pass those of all ranks, and begin anew then."""
        chosen = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if not self._as_dense and any(isinstance(gradients[i], tf.IndexedSlices) for i in chosen):
            raise ValueError("IndexedSlices with backward_passes_per_step > 1 need sparse_as_dense=True")
        sums = [self._sum_of(variables[i]) for i in chosen]
        for total, i in zip(sums, chosen, strict=True):
            total.assign_add(tf.cast(tf.convert_to_tensor(gradients[i]), total.dtype))
        self.counter.assign_add(1)

        def last() -> list[tf.Tensor]:
            values = [total.read_value() for total in sums]
            means = self._averaging(values, [variables[i] for i in chosen])
            self.reset()
            return [mean / self._passes if self._as_mean else tf.identity(mean) for mean in means]

        values = tf.cond(tf.equal(self.counter, self._passes), last, lambda: [total.read_value() for total in sums])
        results = list(gradients)
        for i, value in zip(chosen, tf.nest.flatten(values), strict=True):
            results[i] = value
        return results

    def _sum_of(self, variable: Any) -> tf.Variable:
        if id(variable) not in self._sums:
            with tf.init_scope():
                self._sums[id(variable)] = tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
        return self._sums[id(variable)]


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    **others: Any,
) -> Any:
    """Have `gradtape` return the gradients of all ranks from now on, and return it."""
    refuse_arguments("DistributedGradientTape", others)
    averaging = Averaging(
        "DistributedGradientTape",
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
    )
    tape_class = type(gradtape)

    def gradient(self: Any, target: Any, sources: Any, output_gradients: Any = None, *more: Any, **named: Any) -> Any:
        named.pop("use_generic_names", None)
        gradients = tape_class.gradient(self, target, sources, output_gradients, *more, **named)
        flat = averaging(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, flat)

    names = {
        "gradient": gradient,
        "register_local_source": _refused("register_local_source"),
        "get_local_and_global_gradients": _refused("get_local_and_global_gradients"),
    }
    gradtape.__class__ = type(tape_class.__name__, (tape_class,), names)
    return gradtape


def _refused(name: str) -> property:
    """Return the attribute of a wrapped tape or optimizer which only Horovod's has."""

    def refuse(_: Any) -> None:
        raise not_offered(name)

    return property(refuse)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    *,
    use_locking: bool = False,
    **others: Any,
) -> Any:
    """Have `optimizer`, Keras's or TensorFlow 1's, step by the gradients of all ranks, and return it.

    It becomes one of a subclass of its class, of the same name, which is what is written of it into a saved model.
    """
    refuse_arguments("DistributedOptimizer", others)
    averaging = Averaging(
        name or f"Distributed{type(optimizer).__name__}",
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
    )
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if backward_passes_per_step > 1:
            raise UserError("backward_passes_per_step with a TensorFlow-1 optimizer is not offered: use a Keras one")
        return _remade(optimizer, _old_methods(type(optimizer), averaging))
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UserError(
            f"hvd.DistributedOptimizer is for Keras 3's optimizers and TensorFlow 1's, not {type(optimizer).__name__}"
        )
    accumulation = None
    if backward_passes_per_step > 1:
        accumulation = Accumulation(backward_passes_per_step, averaging, average_aggregated_gradients, sparse_as_dense)
    return _remade(optimizer, _keras_methods(type(optimizer), averaging, accumulation))


def _remade(optimizer: Any, methods: dict[str, Any]) -> Any:
    base = type(optimizer)
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    object.__setattr__(optimizer, "__class__", type(base.__name__, (base,), {**names, **methods}))
    return optimizer


def _keras_methods(base: Any, averaging: Averaging, accumulation: Accumulation | None) -> dict[str, Any]:
    """Return what a distributed Keras optimizer does otherwise than `base`, its class."""
    ready: list[Any] = []  # gradients that are the ranks' already

    def averaged(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return accumulation.add(gradients, variables) if accumulation else averaging(gradients, variables)

    def compute(self: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> list[Any]:
        """Return (gradient, variable) of all ranks, in Keras 2's way."""
        if callable(loss):
            with tf.GradientTape() as tape:
                loss = loss()
        variables = tf.nest.flatten(var_list)
        ready[:] = averaged(tape.gradient(loss, variables, grad_loss), variables)
        return list(zip(ready, variables, strict=True))

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **named: Any) -> Any:
        named.pop("experimental_aggregate_gradients", None)
        return base.apply_gradients(self, grads_and_vars, *args, **named)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not (ready and len(ready) == len(grads) and all(a is b for a, b in zip(ready, grads, strict=True))):
            grads = averaged(grads, variables)
        ready.clear()
        if accumulation is None:
            return base.apply(self, grads, variables)
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        full = tf.equal(accumulation.counter, 0)
        tf.cond(full, _done(lambda: base.apply(self, grads, variables)), _done(lambda: self._iterations.assign_add(1)))
        return None

    methods = {
        "apply": apply,
        "apply_gradients": apply_gradients,
        "_compute_gradients": compute,
        "compute_gradients": compute,
        "register_local_var": _refused("register_local_var"),
        "_agg_helper": accumulation,
    }
    if (
        len(inspect.signature(base.update_step).parameters) == 3
    ):  # Keras 2's, without a rate, of a class of the script's
        methods["update_step"] = lambda self, gradient, variable, _: base.update_step(self, gradient, variable)
    return methods


def _done(action: Callable[[], Any]) -> Callable[[], tf.Tensor]:
    def branch() -> tf.Tensor:
        action()
        return tf.constant(0)

    return branch


def _old_methods(base: Any, averaging: Averaging) -> dict[str, Any]:
    """Return what a distributed TensorFlow-1 optimizer does otherwise than `base`, its class."""

    def compute_gradients(self: Any, *args: Any, **named: Any) -> list[Any]:
        pairs = base.compute_gradients(self, *args, **named)
        variables = [variable for _, variable in pairs]
        return list(zip(averaging([gradient for gradient, _ in pairs], variables), variables, strict=True))

    return {
        "compute_gradients": compute_gradients,
        "register_local_var": _refused("register_local_var"),
        "_optimizer": property(lambda self: self),
    }


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Return Keras's saved model, its optimizer a `DistributedOptimizer`."""
    classes = {cls.__name__: cls for cls in custom_optimizers or []}
    model = keras.models.load_model(filepath, custom_objects=classes | dict(custom_objects or {}))
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
