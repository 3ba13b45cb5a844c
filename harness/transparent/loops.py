"""Hand-written training loops: their batches are divided, what compiled steps return is of all ranks."""

import inspect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.interleave_op import _ParallelInterleaveDataset
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.ops.map_op import _ParallelMapDataset
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework import ops

from harness.base.errors import UserError
from harness.transparent.batch_coupling import MIXED, Shadow
from harness.transparent.collectives import Scalars
from harness.transparent.patch import is_script, replace, script_lines
from harness.transparent.preflight import check_rows
from harness.transparent.rows import divide, has_rows, in_order, leading, length, together
from harness.transparent.runtime import Feeding, Runtime


class Loops:
    """Divides what a Python loop takes from a data set, once that loop is known to train.

    A loop may just as well read a data set into memory or evaluate, and must then see all of it. So its first batch
    comes whole, and counts once; if a step was made of it when the second is asked for, that one is for the trial and
    all that follow the next four (`Shadow`) are divided, and those of the same lines over the same data set from their
    first on; none if the rows of a batch are not independent. The arrays that a loop gives to a compiled step are
    treated alike, call for call, where the step returns nothing but single numbers: its first call is whole.

    A single floating number that the script itself takes out of TensorFlow (`float`, `numpy`, a format) while it has a
    divided batch is the mean of all ranks' rows, or their sum where the trial has seen that; a truth is rank 0's, so
    that all ranks go the same way.
    """

    def __init__(self, runtime: Runtime, scalars: Scalars) -> None:
        self._runtime = runtime
        self._scalars = scalars
        self._training: dict[tuple[Any, ...], weakref.ref[Any]] = {}
        self._trials: dict[tuple[Any, ...], Shadow | bool | None] = {}  # by place; at the end, whether to divide
        self._given: dict[int, Any] = {}  # the compiled steps that are given arrays, by id
        self._place: tuple[Any, ...] = ()
        self._eagerly = False
        self._calls = 0
        self._taken_out: Counter[Any] = Counter()  # numbers of the batch at hand, by the place where they are asked for

    def install(self) -> None:
        """Replace the iterator's `__next__`, the making and calling of compiled functions, and maps in any order."""
        for parallel in (_ParallelMapDataset, _ParallelInterleaveDataset):
            replace(parallel, "__init__", ("self", "input_dataset", "map_func"), _keep_order)
        replace(OwnedIterator, "__init__", ("self", "dataset", "components"), self._init)
        for name in ("__next__", "get_next"):
            replace(OwnedIterator, name, ("self",), self._next)
        replace(Function, "_generate_tracing_options", ("self", "fn", "scope_type"), self._options)
        replace(Function, "__call__", ("self",), self._call)
        replace(ops._EagerTensorBase, "_numpy", ("self",), self._number)

    def end_trial(self) -> None:
        """Conclude the step of the trial if one goes on; all ranks together."""
        trial = self._runtime.collectives.trial
        if not trial.active and trial.shadow is None:
            return
        if trial.shadow is not None:
            trial.shadow.end()
        tf.config.run_functions_eagerly(self._eagerly)
        gather = partial(self._runtime.collectives.gather, label="trial of the gradients")
        mixes = trial.active and not trial.conclude(gather)
        shadow, trial.shadow = trial.shadow, None
        if shadow is not None:
            self._runtime.start_equal(shadow.kept, "statistics of rows")
            if shadow.done:
                mixes = gather(shadow.verdict(trial.is_sum))[-1]
                self._trials[self._place] = True
        if mixes:
            self._trials[self._place] = False
            self._runtime.whole(MIXED)

    def _init(
        self, original: Callable[..., Any], iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        divided = dataset is not None and not self._runtime.in_trainer and tf.executing_eagerly()
        original(iterator, in_order(dataset) if divided else dataset, *args, **kwargs)
        if divided:
            place = script_lines(sys._getframe())
            known = self._training.get(place, lambda: ())()
            iterator._harness_loop = Feeding(dataset=dataset, place=place, trains=known is dataset or known is None)

    def _next(self, original: Callable[..., Any], iterator: Any) -> Any:
        runtime, loop = self._runtime, getattr(iterator, "_harness_loop", None)
        if not tf.executing_eagerly() and not runtime.in_trainer:
            runtime.takes_inside = True
        if loop is None or not tf.executing_eagerly() or runtime.in_trainer or runtime.quiet:
            return original(iterator)
        batch = self._taken(original, iterator, loop)
        runtime.rows.shown = max(_lengths(batch), default=0)
        return batch

    def _taken(self, original: Callable[..., Any], iterator: Any, loop: Feeding) -> Any:
        """Return the next batch, or this rank's part of it."""
        runtime = self._runtime
        self.end_trial()
        runtime.rows.whole()  # also behind the last batch
        runtime.feeding, loop.behind = loop, True
        self._taken_out.clear()
        if runtime.own.present:
            batch = original(iterator)
            rows = max(_lengths(batch), default=1)
            runtime.rows.set(rows, (runtime.world.rank * rows, runtime.world.size * rows))
            return batch
        if not loop.trains:
            return original(iterator)
        _refuse_idle(loop, runtime.steps)
        self._training[loop.place] = weakref.ref(loop.dataset)
        batch = original(iterator) if self._is_tried(loop.place) else self._batch(original, iterator)
        if why := _indivisible(batch):
            runtime.whole(why)
            return batch
        loop.tried |= self._is_tried(loop.place)
        part = self._part(loop.place, loop.dataset, batch)
        if self._trials.get(loop.place) is not False:
            loop.part, loop.behind = part, False
        return part

    def _part(self, place: tuple[Any, ...], source: Any, batch: Any) -> Any:
        """Return this rank's rows of a `batch` of all ranks, or what the trial of its `place` has it compute."""
        runtime = self._runtime
        if self._trials.get(place) is False:
            return self._counted_once(batch)
        if self._is_tried(place):
            return self._try(place, source, batch)
        runtime.note(
            "the loop's batches are divided: its losses, Keras's metrics and the single numbers that it takes out of "
            "TensorFlow are of the rows of all ranks, as means where its first steps have not shown a sum; whatever "
            "else it computes of a batch is of rank 0's"
        )
        rank, size = runtime.world.rank, runtime.world.size
        part, rows, at = divide(batch, rank, size)
        runtime.divided += 1
        rows = int(length(leading(part)) if rows is None else rows)
        runtime.rows.set(rows, (rank * rows, size * rows) if at is None else at.numpy())
        return part

    def _is_tried(self, place: tuple[Any, ...]) -> bool:
        """Tell whether the next step of `place` is one of its trial."""
        return self._runtime.sync.shares_gradients and not isinstance(self._trials.get(place), bool)

    def _counted_once(self, batch: Any) -> Any:
        """Return a batch that every rank has whole: its rows are rank 0's."""
        self._runtime.rows.set(int(length(leading(batch))) * (self._runtime.world.rank == 0))
        return batch

    def _try(self, place: tuple[Any, ...], source: Any, batch: Any) -> Any:
        """Return the batch of a step of the trial: the whole one on rank 0, first with every row twice on the others.

        What they get after that, `Shadow` says.
        """
        runtime, trial = self._runtime, self._runtime.collectives.trial
        self._counted_once(batch)
        self._place, self._eagerly = place, tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        if place not in self._trials:
            check_rows(runtime, source)
            self._trials[place] = None
            runtime.divided += 1
            trial.active = True
            return together([batch, batch]) if runtime.world.rank else batch
        if not isinstance(shadow := self._trials[place], Shadow):
            shadow = self._trials[place] = Shadow(batch=batch, rows=int(length(leading(batch))), kept=runtime.kept)
        trial.shadow = shadow
        return shadow.begin() if runtime.world.rank else batch

    def _batch(self, original: Callable[..., Any], iterator: Any) -> Any:
        """Return the next batch of all ranks: with a batch per rank, as many of the script's as there are ranks."""
        batch = original(iterator)
        if self._runtime.settings.batch == "global" or _indivisible(batch):
            return batch
        batches = [batch]
        while len(batches) < self._runtime.ranks:
            try:
                batches.append(original(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        return together(batches)

    def _options(self, original: Callable[..., Any], function: Any, fn: Callable[..., Any], scope_type: Any) -> Any:
        """Wrap what is traced of a compiled function: inside of autograph, outside of nothing else."""
        if function._jit_compile:
            self._runtime.note("jit_compile is left out: XLA has no allreduce on CPUs")
            function._jit_compile = None
        found = original(function, fn, scope_type)
        traced = found.python_function

        def watching(*args: Any, **kwargs: Any) -> Any:
            before = self._runtime.traced
            outcome = traced(*args, **kwargs)
            if self._runtime.traced != before and not self._runtime.in_trainer:
                function._harness_steps = True
            return outcome

        watching.__name__ = getattr(traced, "__name__", "traced")
        found.python_function = watching
        return found

    def _call(self, original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        runtime = self._runtime
        if not tf.executing_eagerly():
            outcome = original(function, *args, **kwargs)
            if getattr(function, "_harness_steps", False):
                runtime.traced += 1  # what calls a function that trains does so too
            return outcome
        given = runtime.feeding is None or not runtime.feeding.trains
        if self._calls or runtime.in_trainer or runtime.quiet or not given or id(function) not in self._given:
            return self._stepped(original, function, args, kwargs)
        self.end_trial()
        runtime.rows.whole()
        feeding, runtime.feeding = runtime.feeding, None
        try:
            arguments = self._arguments(function, args, kwargs)
            runtime.rows.shown = max(_lengths(arguments), default=0)
            outcome = self._stepped(original, function, *arguments)
            self.end_trial()
            return outcome
        finally:
            runtime.feeding = feeding
            runtime.rows.whole()

    def _stepped(self, original: Callable[..., Any], function: Any, args: Any, kwargs: Any) -> Any:
        """Call a compiled function; return what it returns, with the single numbers of a step those of all rows."""
        runtime = self._runtime
        before = runtime.steps
        self._calls += 1  # those that go on: in a step of the trial, what is called inside is called from Python too
        try:
            outcome = original(function, *args, **kwargs)
        finally:
            self._calls -= 1
        if runtime.in_trainer or runtime.quiet:
            return outcome
        if getattr(function, "_harness_steps", False) and not tf.config.functions_run_eagerly():
            runtime.stepped()
            if runtime.feeding is None and not runtime.own.present and not self._calls:
                rows = any(tf.is_tensor(leaf) and leaf.shape.rank != 0 for leaf in tf.nest.flatten(outcome))
                if not rows:
                    self._given[id(function)] = function
        elif before == runtime.steps:
            return outcome
        outcome = self._scalars.combine(outcome, function)
        return outcome if self._calls else runtime.witness.numbers(function.__name__, outcome)

    def _number(self, original: Callable[..., Any], tensor: Any) -> Any:
        """Return the value of `tensor` as the script gets it: a single one of a divided batch is all ranks'."""
        value, runtime = original(tensor), self._runtime
        loop, trial = runtime.feeding, runtime.collectives.trial
        if loop is None or loop.part is None or self._calls or runtime.in_trainer or runtime.quiet or np.ndim(value):
            return value
        frame = sys._getframe(2)
        while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _CONVERTING):
            frame = frame.f_back
        if threading.current_thread() != threading.main_thread() or not is_script(frame.f_code.co_filename):
            return value
        if not tensor.dtype.is_floating and tensor.dtype != tf.bool:
            return value
        place = (frame.f_code.co_filename, frame.f_lineno)
        self._taken_out[place] += 1
        owner = trial.position(self, (*place, self._taken_out[place]))
        rows = 1.0 if loop.behind and not loop.tried else float(runtime.rows.now())
        found = runtime.collectives.gather((float(value), rows), "numbers that the script takes")
        if tensor.dtype == tf.bool:
            return np.bool_(found[0][0])
        weights = [float(rows > 0) if trial.is_sum(owner) else rows for _, rows in found]
        total = sum(number * weight for (number, _), weight in zip(found, weights, strict=True) if weight)
        agreed = total if trial.is_sum(owner) else total / sum(weights)
        trial.observe(owner, "reported numbers", [float(value)], [agreed])
        return value.dtype.type(agreed)

    def _arguments(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Return the arguments of a compiled step that a loop gives arrays to: this rank's rows of them."""
        batch = tf.nest.map_structure(
            lambda leaf: tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, (args, kwargs)
        )
        fixed = any(spec.shape.rank and spec.shape[0] for spec in tf.nest.flatten(function.input_signature or ()))
        if fixed or _indivisible(batch):
            return args, kwargs
        return self._part((id(function),), [leaf for leaf in tf.nest.flatten(batch) if has_rows(leaf)], batch)


def _keep_order(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Leave out that a map of a data set may be in any order, another on every rank: `rows.in_order` then decides."""
    given = inspect.signature(original).bind(*args, **kwargs)
    given.arguments["deterministic"] = None
    original(*given.args, **given.kwargs)


_CONVERTING = ("tensorflow/python/framework/ops.py", "/numpy/")


def _refuse_idle(loop: Feeding, steps: int) -> None:
    """Refuse a loop whose first divided batch came to no step: it evaluates on a part of the rows.

    Raises:
        UserError: it asks for its second batch and there have been no `steps` since the first.
    """
    if loop.began == steps:
        raise UserError(
            "the lines of the script's training loop go through its data set once more without a training step, and "
            "would see a part of each batch: evaluate in a loop of its own"
        )
    if loop.began is None:
        loop.began = steps


def _lengths(batch: Any) -> set[int]:
    """Return how many rows the parts of a batch have, as far as they have any."""
    return {int(length(leaf)) for leaf in tf.nest.flatten(batch, expand_composites=False) if has_rows(leaf)}


def _indivisible(batch: Any) -> str:
    """Return why a batch has no rows to divide, if so."""
    rows = _lengths(batch)
    if not rows:
        return "the script trains on single rows"
    return f"the parts of a batch have {' and '.join(map(str, sorted(rows)))} rows" if len(rows) > 1 else ""
