"""Hand-written training loops: batches from `tf.data` are divided, numbers from compiled steps are averaged."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from harness.base.errors import UserError
from harness.transparent.collectives import Scalars
from harness.transparent.patch import replace
from harness.transparent.rows import Part, divide, leading, length
from harness.transparent.runtime import Runtime


class Loops:
    """Divides what a Python loop takes from a data set, once that loop is known to train.

    A loop may just as well read a data set into memory or evaluate, and must then see all of it. So its first batch
    comes whole, and counts once; if the optimizer has made a step when the second is asked for, it is divided, and
    so are all that follow, and those of later loops over the same data set from their first on.
    """

    def __init__(self, runtime: Runtime, scalars: Scalars) -> None:
        self._runtime = runtime
        self._scalars = scalars
        self._training: dict[int, Any] = {}

    def install(self) -> None:
        """Replace the iterator's `__next__`, and the making and calling of compiled functions."""
        from tensorflow.python.data.ops.iterator_ops import OwnedIterator
        from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

        replace(OwnedIterator, "__init__", ("self", "dataset", "components"), self._make_init)
        replace(OwnedIterator, "__next__", ("self",), self._make_next)
        replace(Function, "_generate_tracing_options", ("self", "fn", "scope_type"), self._make_options)
        replace(Function, "__call__", ("self",), self._make_call)

    def _make_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            original(iterator, dataset, *args, **kwargs)
            if dataset is not None and not self._runtime.in_trainer:
                iterator._harness_loop = (dataset, self._runtime.steps)

        return init

    def _make_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_batch(iterator: Any) -> Any:
            loop = getattr(iterator, "_harness_loop", None)
            runtime = self._runtime
            if loop is None or not tf.executing_eagerly() or runtime.in_trainer or runtime.quiet:
                return original(iterator)
            if runtime.own.present:
                return self._own(original(iterator))
            runtime.rows.whole()
            dataset, before = loop
            if id(dataset) not in self._training and runtime.steps == before:
                return original(iterator)
            self._training[id(dataset)] = dataset
            part = divide(self._batch(original, iterator), runtime.world.rank, runtime.world.size)
            runtime.divided += 1
            if isinstance(part, Part):
                runtime.rows.set(int(part.rows))
            else:
                runtime.rows.set(length(leading(part.data)))
            return part.data

        return next_batch

    def _own(self, batch: Any) -> Any:
        """Return a batch of the rank's own rows as it is, counted."""
        self._runtime.rows.set(1 if leading_rank(batch) == 0 else int(length(leading(batch))))
        return batch

    def _batch(self, original: Callable[..., Any], iterator: Any) -> Any:
        """Return the next batch of all ranks: with a batch per rank, as many of the script's as there are ranks."""
        batch = original(iterator)
        if leading_rank(batch) == 0:
            raise UserError(
                "the script trains on single rows of a tf.data.Dataset, which cannot be divided over the ranks: "
                "add .batch(n) to it"
            )
        if self._runtime.settings.batch == "global":
            return batch
        batches = [batch]
        while len(batches) < self._runtime.world.size:
            try:
                batches.append(original(iterator))
            except StopIteration:
                break
        return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, axis=0), *batches)

    def _make_options(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what is traced of a compiled function: inside of autograph, outside of nothing else."""

        def options(function: Any, fn: Callable[..., Any], scope_type: Any) -> Any:
            if function._jit_compile:
                self._runtime.note("jit_compile is left out: XLA has no allreduce on CPUs")
                function._jit_compile = None
            found = original(function, fn, scope_type)
            found.python_function = self._reporting(function, found.python_function)
            return found

        return options

    def _reporting(self, function: Any, traced: Callable[..., Any]) -> Callable[..., Any]:
        """Return `traced`, its floating scalars averaged if it turns out to train."""
        runtime = self._runtime

        def reporting(*args: Any, **kwargs: Any) -> Any:
            before = runtime.traced
            outcome = traced(*args, **kwargs)
            if runtime.traced == before or runtime.in_trainer:
                return outcome
            function._harness_steps = True
            return self._scalars.average(outcome)

        reporting.__name__ = getattr(traced, "__name__", "traced")
        return reporting

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            outcome = original(function, *args, **kwargs)
            if getattr(function, "_harness_steps", False) and tf.executing_eagerly():
                self._runtime.stepped()
            return outcome

        return call


def leading_rank(batch: Any) -> int | None:
    """Return the number of dimensions of the first tensor of a batch."""
    first = tf.nest.flatten(batch)[0]
    return None if first.shape.rank is None else int(first.shape.rank)
