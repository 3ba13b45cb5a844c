"""Keras metrics: each rank counts its own rows, and a result is of the rows of all ranks."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from harness.transparent.collectives import Scalars
from harness.transparent.patch import replace
from harness.transparent.runtime import Runtime


class Metrics:
    """Adds up the states of metrics over the ranks where a result is asked for.

    Metrics whose states are sums and counts (all of Keras's) give what one process would have given.
    """

    def __init__(self, runtime: Runtime, scalars: Scalars) -> None:
        self._runtime = runtime
        self._scalars = scalars
        self._gated: ContextVar[frozenset[int]] = ContextVar("gated", default=frozenset())

    def install(self) -> None:
        """Wrap `update_state` and `result` of every metric class, those to come as well, and the trainer's summary."""
        from keras.src.metrics.metric import Metric
        from keras.src.trainers.trainer import Trainer

        self._wrap_class(Metric)
        known = list(Metric.__subclasses__())
        while known:
            metric = known.pop()
            self._wrap_class(metric)
            known += metric.__subclasses__()
        define = Metric.__init_subclass__

        def init_subclass(cls: type, /, **kwargs: Any) -> None:
            define(**kwargs)
            self._wrap_class(cls)

        Metric.__init_subclass__ = classmethod(init_subclass)
        replace(Trainer, "get_metrics_result", ("self",), self._grouped)

    def _wrap_class(self, metric: Any) -> None:
        if "result" in vars(metric):
            replace(metric, "result", ("self",), self._result)
        if "update_state" in vars(metric):
            replace(metric, "update_state", ("self",), self._update)

    def _result(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def result(metric: Any, *args: Any, **kwargs: Any) -> Any:
            return self._summed(metric.variables, lambda: original(metric, *args, **kwargs))

        return result

    def _grouped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_metrics_result(trainer: Any) -> Any:
            variables = {id(v): v for metric in trainer.metrics for v in metric.variables}
            return self._summed(list(variables.values()), lambda: original(trainer))

        return get_metrics_result

    def _summed(self, variables: Sequence[Any], compute: Callable[[], Any]) -> Any:
        """Return what `compute` makes of the states' sums over the ranks."""
        from keras.src import backend

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
            return self._scalars.mark(compute())

    def _update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Leave a metric as it was where the rank's rows count for nothing."""

        def update_state(metric: Any, *args: Any, **kwargs: Any) -> Any:
            inside = self._gated.get()
            own = metric._variables
            if self._runtime.quiet or self._runtime.rows.even or not own or id(metric) in inside:
                return original(metric, *args, **kwargs)
            before = [tf.identity(variable.value) for variable in own]
            token = self._gated.set(inside | {id(metric)})
            try:
                outcome = original(metric, *args, **kwargs)
            finally:
                self._gated.reset(token)
            counts = self._runtime.rows.now() > 0
            for variable, value in zip(own, before, strict=False):
                variable.assign(tf.where(counts, variable.value, value))
            return outcome

        return update_state
