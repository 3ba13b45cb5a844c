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
from harness.transparent.batch_coupling import MIXED, CouplingTrial
from harness.transparent.batch_rows import in_order, leading, length, together
from harness.transparent.collectives import Scalars
from harness.transparent.compiled_steps import rows_in
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.patch import is_script, replace, script_lines
from harness.transparent.preflight import check_rows
from harness.transparent.runtime import Runtime
from harness.transparent.step_calls import StepCalls, indivisible
from harness.transparent.training_states import TrainingEvent, TrainingState, advance


@dataclass(kw_only=True)
class LoopTrial:
    """The first batches of a loop that takes gradients itself: their state, and the steps that show it."""

    state: TrainingState = TrainingState.UNKNOWN
    coupling: CouplingTrial | None = None

    def note(self, event: TrainingEvent) -> None:
        """Go to the state that follows an event."""
        self.state = advance(self.state, event)


class Loops:
    """Divides what a Python loop takes from a data set, once that loop is known to train.

    A loop may just as well read a data set into memory, or evaluate; then it must see all rows. So its first batch
    comes whole, and counts once. If a step has been made of it when the second batch is asked for, the loop trains. The
    second batch and the next four are for the trial (`CouplingTrial`); all later batches are divided, and so are those
    of the same lines over the same data set, from the first on. None is divided if the rows of a batch are not
    independent.

    The arrays that a loop gives to a compiled step are treated alike, call by call, where the step returns nothing but
    single numbers: its first call is whole.

    A single floating number that the script itself takes out of TensorFlow (`float`, `numpy`, a format) while it has a
    divided batch is the mean over all ranks' rows, or their sum where the trial has seen that. A truth value is rank
    0's, so that all ranks take the same branch.
    """

    def __init__(self, runtime: Runtime, scalars: Scalars) -> None:
        self._runtime = runtime
        self._scalars = scalars
        self._calls = StepCalls(runtime, scalars, self.end_trial)
        self._training: dict[tuple[Any, ...], tuple[weakref.ref[Any], DatasetLoop]] = {}  # by lines
        self._trials: dict[tuple[Any, ...], LoopTrial] = {}  # by place
        self._current = LoopTrial()
        self._unprobed_place = ""
        self._ran_eagerly = False
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
        runtime = self._runtime
        loop = runtime.loop
        if not tf.executing_eagerly() or variable.name.startswith("harness_"):
            return
        if not is_script(_maker(sys._getframe())):
            return
        rows = variable.shape[0] if variable.shape.rank else 0
        has_batch = loop is not None and loop.batch is not None
        is_of_batch = has_batch and rows == runtime.rows.present_rows > 1
        runtime.variables.note_variable(variable, of_rows=is_of_batch or rows is None)
        if not is_of_batch and variable.trainable and variable.dtype.is_floating:
            runtime.generation += 1

    def end_trial(self) -> None:
        """Conclude the step of the trial if one goes on; all ranks together.

        Raises:
            UserError: it shows a sum, or that rows are mixed, where a step has been made of a part already.
        """
        runtime = self._runtime
        trial = runtime.collectives.trial
        if not trial.goes_on:
            return
        if trial.coupling is not None:
            trial.coupling.end()
        tf.config.run_functions_eagerly(self._ran_eagerly)
        gather = partial(runtime.collectives.gather, label="trial of the gradients")
        mixes = trial.active and not trial.conclude(gather)
        coupling = trial.coupling
        trial.coupling = None
        runtime.variables.equalise("variables of a step")
        ends = coupling is not None and coupling.done
        if coupling is not None and ends:
            mixes = gather(coupling.verdict(trial.is_sum))[-1]
        if self._unprobed_place and (mixes or trial.found_sum):
            self._current.note(TrainingEvent.SPOILT)
            raise UserError(
                f"the loop takes gradients of something else at {self._unprobed_place} than in its first steps, of "
                "parts of a batch that cannot be divided so: train it in a loop of its own"
            )
        if mixes:
            self._current.note(TrainingEvent.MIXED)
            runtime.compute_whole(MIXED)
        elif ends:
            self._current.note(TrainingEvent.INDEPENDENT)

    def _init(
        self, original: Callable[..., Any], iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        divided = dataset is not None and not self._runtime.in_trainer and tf.executing_eagerly()
        original(iterator, in_order(dataset) if divided else dataset, *args, **kwargs)
        if divided:
            iterator._harness_loop = self._begin_loop(dataset, script_lines(sys._getframe()))

    def _begin_loop(self, dataset: Any, lines: tuple[Any, ...]) -> DatasetLoop:
        """Return the loop that begins at `lines`, with what an earlier one over the same data set has shown."""
        loop = DatasetLoop(dataset=dataset, lines=lines, generation=self._runtime.generation)
        if lines not in self._training:
            return loop
        source, earlier = self._training[lines]
        if source() in (None, dataset) and earlier.generation == loop.generation:
            loop.take_over(earlier)
        return loop

    def _next(self, original: Callable[..., Any], iterator: Any) -> Any:
        runtime = self._runtime
        loop = getattr(iterator, "_harness_loop", None)
        if not tf.executing_eagerly() and not runtime.in_trainer:
            runtime.takes_inside = True
        if loop is None or not tf.executing_eagerly() or runtime.in_trainer or runtime.quiet:
            return original(iterator)
        batch = self._taken(original, iterator, loop)
        runtime.rows.present_rows = max(rows_in(batch), default=0)
        return batch

    def _taken(self, original: Callable[..., Any], iterator: Any, loop: DatasetLoop) -> Any:
        """Return the next batch, or this rank's part of it."""
        runtime = self._runtime
        self.end_trial()
        runtime.signals.meet()
        runtime.rows.set_undivided()  # also after the last batch
        runtime.loop = loop
        loop.is_over = True
        loop.batch = None
        loop.is_divided = False
        self._taken_out.clear()
        if runtime.own_rows.present:
            batch = original(iterator)
            rows = max(rows_in(batch), default=1)
            runtime.rows.set(rows, (runtime.world.rank * rows, runtime.world.size * rows))
            return batch
        if loop.is_observed and loop.trains:  # all that it trains has been seen with a whole batch
            loop.is_observed = False
            loop.generation = runtime.generation
        elif loop.generation != runtime.generation:
            loop.observe_again()
            loop.generation = runtime.generation
        if not loop.trains:
            loop.batch = original(iterator)
            return loop.batch
        self._training[loop.lines] = (weakref.ref(loop.dataset), loop)
        return self._trained(original, iterator, loop)

    def _trained(self, original: Callable[..., Any], iterator: Any, loop: DatasetLoop) -> Any:
        """Return the next batch of a loop that trains, or this rank's part of it."""
        runtime = self._runtime
        trial = self._trials.setdefault(loop.place, LoopTrial()) if loop.takes_gradients else None
        on_trial = trial is not None and trial.state in _ON_TRIAL and runtime.sync.shares_gradients
        if trial is not None:
            computes_whole = trial.state is TrainingState.WHOLE
        else:
            computes_whole = {step.state for step in loop.steps} == {TrainingState.WHOLE}
        if not computes_whole:
            _refuse_idle(loop, runtime.steps)
        loop.batch = original(iterator) if on_trial else self._batch(original, iterator)
        if why := indivisible(loop.batch):
            runtime.compute_whole(why)
            return loop.batch
        if computes_whole:
            loop.part = None
            return self._counted_once(loop.batch)
        loop.had_trial |= on_trial
        self._unprobed_place = loop.unprobed_place if on_trial else ""
        loop.part = self._try(loop) if on_trial else self._calls.divide(loop.batch)
        loop.is_divided = not on_trial
        loop.is_over = False
        return loop.part

    def _counted_once(self, batch: Any) -> Any:
        """Return a batch that every rank has whole: its rows are rank 0's."""
        self._runtime.rows.set(max(rows_in(batch), default=1) * (self._runtime.world.rank == 0))
        return batch

    def _try(self, loop: DatasetLoop) -> Any:
        """Return the batch of a step of the trial: the whole one on rank 0.

        The others get the batch with every row twice, and in the following steps what `CouplingTrial` says.
        """
        runtime = self._runtime
        trial = runtime.collectives.trial
        batch = self._counted_once(loop.batch)
        current = self._trials[loop.place]
        self._current = current
        self._ran_eagerly = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        if current.state is TrainingState.UNKNOWN:
            check_rows(runtime, loop.dataset)
            current.note(TrainingEvent.TRAINED)
            runtime.divided += 1
            trial.active = True
            return together([batch, batch]) if runtime.world.rank else batch
        if current.coupling is None:
            rows = int(length(leading(batch)))
            current.coupling = CouplingTrial(batch=batch, rows=rows, untrained=runtime.variables.untrained)
        trial.coupling = current.coupling
        return trial.coupling.begin() if runtime.world.rank else batch

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
        """Return the value of `tensor` as the script gets it: a single number of a divided batch is of all ranks."""
        value = original(tensor)
        runtime = self._runtime
        loop = runtime.loop
        if loop is None or loop.part is None or runtime.calls or runtime.in_trainer or runtime.quiet or np.ndim(value):
            return value
        frame = sys._getframe(2)
        while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _CONVERTING):
            frame = frame.f_back
        if threading.current_thread() != threading.main_thread() or not is_script(frame.f_code.co_filename):
            return value
        if not tensor.dtype.is_floating and tensor.dtype != tf.bool:
            return value
        return self._agreed(value, loop, (frame.f_code.co_filename, frame.f_lineno))

    def _agreed(self, value: Any, loop: DatasetLoop, place: tuple[str, int]) -> Any:
        """Return the number of all ranks for this rank's `value`, which the script takes out at `place`."""
        runtime = self._runtime
        trial = runtime.collectives.trial
        self._taken_out[place] += 1
        owner = trial.position(self, (*place, self._taken_out[place]))
        rank_rows = 1.0 if loop.is_over and not loop.had_trial else float(runtime.rows.weight())
        rank_numbers = runtime.collectives.gather((float(value), rank_rows), "numbers that the script takes")
        if value.dtype == np.bool_:
            return np.bool_(rank_numbers[0][0])
        if trial.is_sum(owner):
            agreed = sum(number for number, rows in rank_numbers if rows > 0)
        else:
            weighted = sum(number * rows for number, rows in rank_numbers if rows)
            agreed = weighted / sum(rows for _, rows in rank_numbers)
        trial.observe(owner, "reported numbers", [float(value)], [agreed])
        return value.dtype.type(agreed)


_ON_TRIAL = (TrainingState.UNKNOWN, TrainingState.PROBED)


def _keep_order(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Make a parallel map of a data set without its own choice of order: `rows.in_order` decides.

    A map that may yield its elements in any order yields another order on every rank.
    """
    call = inspect.signature(original).bind(*args, **kwargs)
    call.arguments["deterministic"] = None
    original(*call.args, **call.kwargs)


def _maker(frame: Any) -> str:
    """Return the file of the code that makes something by TensorFlow, above `frame`."""
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _MAKING):
        frame = frame.f_back
    return str(frame.f_code.co_filename)


_MAKING = ("/harness/transparent/", "/tensorflow/python/", "functools.py", "contextlib.py")
_CONVERTING = ("tensorflow/python/framework/ops.py", "/numpy/")


def _refuse_idle(loop: DatasetLoop, steps: int) -> None:
    """Refuse a loop whose first divided batch came to no step: it evaluates on a part of the rows.

    Raises:
        UserError: it asks for its second batch and there have been no `steps` since the first.
    """
    if loop.first_part_steps == steps:
        raise UserError(
            "the lines of the script's training loop go through its data set once more without a training step, and "
            "would see a part of each batch: evaluate in a loop of its own"
        )
    if loop.first_part_steps is None:
        loop.first_part_steps = steps
