"""Hand-written training loops: their batches are divided, what compiled steps return is of all ranks."""

import inspect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from tensorflow.python.data.ops.interleave_op import _ParallelInterleaveDataset
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.ops.map_op import _ParallelMapDataset
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework import ops
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from harness.base.errors import UserError
from harness.transparent.batch_coupling import MIXED, Shadow
from harness.transparent.collectives import Scalars
from harness.transparent.compiled_steps import rows_in
from harness.transparent.patch import is_script, replace, script_lines
from harness.transparent.preflight import check_rows
from harness.transparent.rows import in_order, leading, length, together
from harness.transparent.runtime import Feeding, Runtime
from harness.transparent.step_calls import StepCalls, indivisible
from harness.transparent.training_states import TrainingEvent, TrainingState, advance


@dataclass(kw_only=True)
class LoopTrial:
    """The first batches of a loop that takes gradients itself: what is known of these, and the steps that show it."""

    state: TrainingState = TrainingState.UNKNOWN
    shadow: Shadow | None = None

    def note(self, event: TrainingEvent) -> None:
        """Take note of what has been seen."""
        self.state = advance(self.state, event)


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
        self._calls = StepCalls(runtime, scalars, self.end_trial)
        self._training: dict[tuple[Any, ...], tuple[weakref.ref[Any], Feeding]] = {}  # by lines
        self._trials: dict[tuple[Any, ...], LoopTrial] = {}  # by place
        self._current = LoopTrial()
        self._doubt = ""
        self._eagerly = False
        self._taken_out: Counter[Any] = Counter()  # numbers of the batch at hand, by the place where they are asked for

    def install(self) -> None:
        """Replace the iterator's `__next__`, the making and calling of compiled functions, and maps in any order."""
        for parallel in (_ParallelMapDataset, _ParallelInterleaveDataset):
            replace(parallel, "__init__", ("self", "input_dataset", "map_func"), _keep_order)
        replace(OwnedIterator, "__init__", ("self", "dataset", "components"), self._init)
        for name in ("__next__", "get_next"):
            replace(OwnedIterator, name, ("self",), self._next)
        replace(Function, "__init__", ("self", "python_function", "name"), self._make)
        replace(Function, "_generate_tracing_options", ("self", "fn", "scope_type"), self._calls.options)
        replace(Function, "__call__", ("self",), self._calls.call)
        replace(BaseOptimizer, "__init__", ("self", "learning_rate"), self._make)
        replace(ResourceVariable, "__init__", ("self",), self._make_variable)
        replace(ops._EagerTensorBase, "_numpy", ("self",), self._number)

    def _make(self, original: Callable[..., Any], thing: Any, *args: Any, **kwargs: Any) -> None:
        """Make a compiled function of the script's, or an optimizer: it may train what nobody has seen trained."""
        original(thing, *args, **kwargs)
        if not isinstance(thing, Function) or is_script(_maker(sys._getframe())):
            self._runtime.generation += 1

    def _make_variable(self, original: Callable[..., Any], variable: Any, *args: Any, **kwargs: Any) -> None:
        """Make a variable: one of a batch's rows that the script makes of it is no weight."""
        original(variable, *args, **kwargs)
        runtime, loop = self._runtime, self._runtime.feeding
        if not tf.executing_eagerly() or variable.name.startswith("harness_"):
            return
        if not is_script(_maker(sys._getframe())):
            return
        rows = variable.shape[0] if variable.shape.rank else 0
        taken = loop is not None and loop.whole is not None and rows == runtime.rows.shown > 1
        runtime.note_variable(variable, of_rows=taken or rows is None)
        if not taken and variable.trainable and variable.dtype.is_floating:
            runtime.generation += 1

    def end_trial(self) -> None:
        """Conclude the step of the trial if one goes on; all ranks together.

        Raises:
            UserError: it shows a sum, or that rows are mixed, where a step has been made of a part already.
        """
        runtime, trial = self._runtime, self._runtime.collectives.trial
        if not trial.goes_on:
            return
        if trial.shadow is not None:
            trial.shadow.end()
        tf.config.run_functions_eagerly(self._eagerly)
        gather = partial(runtime.collectives.gather, label="trial of the gradients")
        mixes = trial.active and not trial.conclude(gather)
        shadow, trial.shadow = trial.shadow, None
        runtime.equalise("variables of a step")
        ends = shadow is not None and shadow.done
        if shadow is not None and ends:
            mixes = gather(shadow.verdict(trial.is_sum))[-1]
        if self._doubt and (mixes or trial.found_sum):
            self._current.note(TrainingEvent.SPOILT)
            raise UserError(
                f"the loop takes gradients of something else at {self._doubt} than in its first steps, of parts of a "
                "batch that cannot be divided so: train it in a loop of its own"
            )
        if mixes:
            self._current.note(TrainingEvent.MIXED)
            runtime.whole(MIXED)
        elif ends:
            self._current.note(TrainingEvent.INDEPENDENT)

    def _init(
        self, original: Callable[..., Any], iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        divided = dataset is not None and not self._runtime.in_trainer and tf.executing_eagerly()
        original(iterator, in_order(dataset) if divided else dataset, *args, **kwargs)
        if divided:
            lines = script_lines(sys._getframe())
            loop = iterator._harness_loop = Feeding(dataset=dataset, lines=lines, generation=self._runtime.generation)
            source, known = self._training.get(lines, (lambda: loop, None))
            if known is not None and source() in (None, dataset) and known.generation == loop.generation:
                loop.trains, loop.looks, loop.eager = True, False, known.eager
                loop.steps, loop.owners = known.steps, known.owners

    def _next(self, original: Callable[..., Any], iterator: Any) -> Any:
        runtime, loop = self._runtime, getattr(iterator, "_harness_loop", None)
        if not tf.executing_eagerly() and not runtime.in_trainer:
            runtime.takes_inside = True
        if loop is None or not tf.executing_eagerly() or runtime.in_trainer or runtime.quiet:
            return original(iterator)
        batch = self._taken(original, iterator, loop)
        runtime.rows.shown = max(rows_in(batch), default=0)
        return batch

    def _taken(self, original: Callable[..., Any], iterator: Any, loop: Feeding) -> Any:
        """Return the next batch, or this rank's part of it."""
        runtime = self._runtime
        self.end_trial()
        runtime.signals.meet()
        runtime.rows.whole()  # also behind the last batch
        runtime.feeding, loop.behind = loop, True
        loop.whole, loop.divided = None, False
        self._taken_out.clear()
        if runtime.own.present:
            batch = original(iterator)
            rows = max(rows_in(batch), default=1)
            runtime.rows.set(rows, (runtime.world.rank * rows, runtime.world.size * rows))
            return batch
        if loop.looks and loop.trains:  # all that it trains has been seen in a batch that was whole
            loop.looks, loop.generation = False, runtime.generation
        elif loop.generation != runtime.generation:
            loop.look_again()
            loop.generation = runtime.generation
        if not loop.trains:
            loop.whole = original(iterator)
            return loop.whole
        self._training[loop.lines] = (weakref.ref(loop.dataset), loop)
        return self._trained(original, iterator, loop)

    def _trained(self, original: Callable[..., Any], iterator: Any, loop: Feeding) -> Any:
        """Return the next batch of a loop that trains, or this rank's part of it."""
        runtime = self._runtime
        trial = self._trials.setdefault(loop.place, LoopTrial()) if loop.eager else None
        tried = trial is not None and trial.state in _ON_TRIAL and runtime.sync.shares_gradients
        whole = {step.state for step in loop.steps} == {TrainingState.WHOLE}
        if trial is not None:
            whole = trial.state is TrainingState.WHOLE
        if not whole:
            _refuse_idle(loop, runtime.steps)
        loop.whole = batch = original(iterator) if tried else self._batch(original, iterator)
        if why := indivisible(batch):
            runtime.whole(why)
            return batch
        if whole:
            loop.part = None
            return self._counted_once(batch)
        loop.tried |= tried
        self._doubt = loop.doubt if tried else ""
        part = self._try(loop, batch) if tried else self._calls.divide(batch)
        loop.divided = not tried
        loop.part, loop.behind = part, False
        return part

    def _counted_once(self, batch: Any) -> Any:
        """Return a batch that every rank has whole: its rows are rank 0's."""
        self._runtime.rows.set(max(rows_in(batch), default=1) * (self._runtime.world.rank == 0))
        return batch

    def _try(self, loop: Feeding, batch: Any) -> Any:
        """Return the batch of a step of the trial: the whole one on rank 0, first with every row twice on the others.

        What they get after that, `Shadow` says.
        """
        runtime, trial = self._runtime, self._runtime.collectives.trial
        self._counted_once(batch)
        self._current, self._eagerly = self._trials[loop.place], tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        if self._current.state is TrainingState.UNKNOWN:
            check_rows(runtime, loop.dataset)
            self._current.note(TrainingEvent.TRAINED)
            runtime.divided += 1
            trial.active = True
            return together([batch, batch]) if runtime.world.rank else batch
        if self._current.shadow is None:
            self._current.shadow = Shadow(batch=batch, rows=int(length(leading(batch))), kept=runtime.kept)
        trial.shadow = self._current.shadow
        return trial.shadow.begin() if runtime.world.rank else batch

    def _batch(self, original: Callable[..., Any], iterator: Any) -> Any:
        """Return the next batch of all ranks: with a batch per rank, as many of the script's as there are ranks."""
        batch = original(iterator)
        if self._runtime.settings.batch == "global" or indivisible(batch):
            return batch
        batches = [batch]
        while len(batches) < self._runtime.ranks:
            try:
                batches.append(original(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        return together(batches)

    def _number(self, original: Callable[..., Any], tensor: Any) -> Any:
        """Return the value of `tensor` as the script gets it: a single one of a divided batch is all ranks'."""
        value, runtime = original(tensor), self._runtime
        loop, trial = runtime.feeding, runtime.collectives.trial
        if loop is None or loop.part is None or runtime.calls or runtime.in_trainer or runtime.quiet or np.ndim(value):
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


_ON_TRIAL = (TrainingState.UNKNOWN, TrainingState.PROBED)


def _keep_order(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Leave out that a map of a data set may be in any order, another on every rank: `rows.in_order` then decides."""
    given = inspect.signature(original).bind(*args, **kwargs)
    given.arguments["deterministic"] = None
    original(*given.args, **given.kwargs)


def _maker(frame: Any) -> str:
    """Return the file of the code that makes something by TensorFlow, above `frame`."""
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _MAKING):
        frame = frame.f_back
    return str(frame.f_code.co_filename)


_MAKING = ("/harness/transparent/", "/tensorflow/python/", "functools.py", "contextlib.py")
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
