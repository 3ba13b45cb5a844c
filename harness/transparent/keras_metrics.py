"""Keras metrics: each rank counts its own rows, and a result is one of all ranks' rows."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend
from keras.src.metrics.metric import Metric
from keras.src.trainers.trainer import Trainer

from harness.schema.record_notes import Note, NoteCode
from harness.transparent.batch_rows import length
from harness.transparent.collectives import Scalars
from harness.transparent.keras_layers import is_keras_object, mixes_rows, rows_of_all_ranks
from harness.transparent.patch import put, replace
from harness.transparent.probe import handle_of
from harness.transparent.runtime import Runtime, switched_on


class Metrics:
    """Adds up the states of Keras's own metrics over the ranks when a result is asked for: they are sums and counts.

    A metric that the script has written may hold anything: each rank updates it with the rows of all ranks.
    """

    def __init__(self, runtime: Runtime, scalars: Scalars) -> None:
        self._runtime = runtime
        self._scalars = scalars
        self._inside: ContextVar[bool] = ContextVar("inside a metric", default=False)

    def install(self) -> None:
        """Wrap `update_state` and `result` of every metric class, also of later ones, and the trainer's summary."""
        self._wrap_class(Metric)
        classes = list(Metric.__subclasses__())
        while classes:
            metric = classes.pop()
            self._wrap_class(metric)
            classes += metric.__subclasses__()
        define = Metric.__init_subclass__

        def init_subclass(cls: type, /, **kwargs: Any) -> None:
            define(**kwargs)
            self._wrap_class(cls)

        put(Metric, "__init_subclass__", classmethod(init_subclass))
        replace(Trainer, "get_metrics_result", ("self",), self._grouped)

    def _wrap_class(self, metric: Any) -> None:
        if "result" in vars(metric):
            replace(metric, "result", ("self",), self._result)
        if "update_state" in vars(metric):
            replace(metric, "update_state", ("self",), self._update)

    def _result(self, original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a metric's result over the rows of all ranks."""
        runtime = self._runtime
        is_inner = self._inside.get()
        compute = partial(original, metric, *args, **kwargs)
        if needs_all_rows(metric) or is_inner:
            result = self._within(compute)
        else:
            result = self._summed(metric.variables, compute)
        if runtime.collectives.trial.probe is not None:
            runtime.collectives.trial.probe.results += tf.nest.flatten(result)
        is_of_loop = tf.executing_eagerly() and not (is_inner or runtime.in_trainer or runtime.quiet)
        return runtime.witness.numbers(metric.name, result) if is_of_loop else result

    def _grouped(self, original: Callable[..., Any], trainer: Any) -> Any:
        """Return the results of all metrics of a model, with one exchange for all of their states."""
        if self._runtime.lean:
            return {}
        fusion = self._runtime.fusion
        results = fusion.take_results(trainer) if fusion is not None and tf.executing_eagerly() else None
        if results is not None:
            return results
        variables = {id(v): v for metric in trainer.metrics for v in _summed_states(metric)}
        results = self._summed(list(variables.values()), lambda: original(trainer))
        if self._runtime.collectives.trial.probe is not None:
            self._runtime.collectives.trial.probe.results += tf.nest.flatten(results)
        return results

    def _within(self, compute: Callable[[], Any]) -> Any:
        """Return what `compute` returns; metrics inside the current one are left alone."""
        with switched_on(self._inside):
            return compute()

    def _summed(self, variables: Sequence[Any], compute: Callable[[], Any]) -> Any:
        """Return what `compute` makes of the sums of the states `variables` over the ranks."""
        if self._runtime.quiet or not variables or backend.in_stateless_scope():
            return compute()
        # Counts in integers are exact in float64.
        values = [
            tf.convert_to_tensor(v) if v.dtype.startswith("float") else tf.cast(v.value, tf.float64) for v in variables
        ]
        sums = self._runtime.collectives.sum(values, "metrics")
        with backend.StatelessScope(
            state_mapping=[(v, tf.cast(total, v.dtype)) for v, total in zip(variables, sums, strict=True)]
        ):
            return self._scalars.mark(self._within(compute))

    def _update(self, original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
        """Update a metric with this rank's rows, or with those of all ranks."""
        runtime = self._runtime
        probe = runtime.collectives.trial.probe
        if probe is not None:
            probe.counted |= {id(handle_of(variable)) for variable in metric.variables}
            if len(args) == 1 and tf.is_tensor(args[0]) and args[0].shape.rank == 0:
                probe.numbers[id(metric)] = metric, args[0]
        if not needs_all_rows(metric):
            runtime.witness.leave_out(metric.variables)  # they are of the rank's rows
        # One of the script's own may hold its state in other metrics, or in no variable of Keras's at all.
        if runtime.quiet or self._inside.get() or not (metric._variables or needs_all_rows(metric)):
            return original(metric, *args, **kwargs)
        rows = None if runtime.in_trainer or not tf.executing_eagerly() else rows_of_arguments((args, kwargs))
        with runtime.rows.numbers_of(rows):
            if needs_all_rows(metric):
                runtime.note(Note(code=NoteCode.METRIC_OF_ALL_ROWS, values={"name": metric.name}))
                args, kwargs = self._all_rows(metric, args, kwargs)
                return self._within(lambda: original(metric, *args, **kwargs))
            if runtime.rows.even and not runtime.collectives.trial.is_sum(metric):
                return self._within(lambda: original(metric, *args, **kwargs))
            return self._update_weighted(original, metric, args, kwargs)

    def _update_weighted(self, original: Callable[..., Any], metric: Any, args: Any, kwargs: Any) -> Any:
        """Update one of Keras's metrics where the ranks' rows, or the numbers made of them, count differently."""
        runtime = self._runtime
        has_weights = kwargs.get("sample_weight") is not None
        if has_weights and runtime.collectives.trial.is_sum(metric):  # a rank's part of the loss, with its rows
            count = runtime.rows.weight()
            total = runtime.collectives.sum([count], "numbers of rows")[0]
            args = (tf.cast(args[0], tf.float32) * tf.math.divide_no_nan(total, count), *args[1:])
        numbers = None if has_weights else self._numbers(metric, args)
        # A single number is one of all ranks' rows: it counts once, on rank 0.
        counts = runtime.rows.weight() > 0 if numbers is None else tf.constant(runtime.world.rank == 0)
        return self._counted(metric, counts, lambda: original(metric, *(numbers or args), **kwargs))

    def _all_rows(self, metric: Any, args: Any, kwargs: Any) -> Any:
        """Return the arguments of a metric of the script's own for all ranks: all rows, and means of single numbers."""
        args, kwargs = rows_of_all_ranks(self._runtime, (args, kwargs), "metric")
        leaves = tree.flatten((args, kwargs))
        scalars = [i for i, leaf in enumerate(leaves) if tf.is_tensor(leaf) and leaf.shape.rank == 0]
        chosen = [i for i in scalars if leaves[i].dtype.is_floating]
        means = self._runtime.collectives.mean([leaves[i] for i in chosen], "reported numbers", owner=metric)
        for i, mean in zip(chosen, means, strict=True):
            leaves[i] = mean
        return tree.pack_sequence_as((args, kwargs), leaves)

    def _numbers(self, metric: Any, args: Any) -> list[tf.Tensor] | None:
        """Return the single number that a mean or a sum is given, such as a batch's loss, of all ranks' rows, or None.

        A number with a weight is summed like any other: Keras's trainer gives the loss of the rank's rows together with
        their number.
        """
        if type(metric) not in (keras.metrics.Mean, keras.metrics.Sum) or len(args) != 1:
            return None
        value = tf.convert_to_tensor(args[0])
        if value.shape.rank != 0 or not value.dtype.is_floating:
            return None
        return self._runtime.collectives.mean([value], "reported numbers", owner=metric)

    def _counted(self, metric: Any, counts: tf.Tensor, update: Callable[[], Any]) -> Any:
        """Update a metric, but leave it unchanged on ranks where its arguments do not count."""
        variables = metric._variables
        values_before = [tf.identity(variable.value) for variable in variables]
        outcome = self._within(update)
        for variable, value in zip(variables, values_before, strict=False):
            variable.assign(tf.where(counts, variable.value, value))
        return outcome


def needs_all_rows(metric: Any) -> bool:
    """Tell whether a metric, or the function of which it takes the mean, is the script's own or mixes rows."""
    if not is_keras_object(type(metric)) or mixes_rows(metric):
        return True
    return isinstance(metric, keras.metrics.MeanMetricWrapper) and not is_keras_object(metric._fn)


def _summed_states(metric: Any) -> list[Any]:
    """Return the variables of `metric`, and of the metrics inside it, that are sums over the ranks' rows."""
    inner = getattr(metric, "metrics", None)  # compiled metrics hold many
    if isinstance(inner, list) and inner:
        return [variable for part in inner for variable in _summed_states(part)]
    return [] if needs_all_rows(metric) else list(metric.variables)


def rows_of_arguments(arguments: Any) -> int | None:
    """Return the number of rows of the first array or tensor among `arguments`, None when there is none."""
    for leaf in tree.flatten(arguments):
        if getattr(leaf, "shape", None) is not None and len(leaf.shape) > 0:
            return int(length(tf.convert_to_tensor(leaf)))
    return None
