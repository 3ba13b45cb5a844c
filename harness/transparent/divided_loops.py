"""Hand-written training loops: their batches are divided, what compiled steps return is of all ranks."""

import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from tensorflow.python.data.ops.interleave_op import _ParallelInterleaveDataset
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.ops.map_op import _ParallelMapDataset
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from harness.base.errors import UserError
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.batch_rows import bounds, divide, has_rows, in_order, leading, length, some, together
from harness.transparent.collectives import Scalars
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.patch import is_script, replace, script_lines
from harness.transparent.preflight import check_rows
from harness.transparent.probe import MIXED, CheckTimes, CouplingTrial, probe_function, undrawn
from harness.transparent.replica_variables import initialised
from harness.transparent.runtime import Runtime
from harness.transparent.taken_values import TakenValues, is_library

# What is known of a training, and how that changes: a compiled step, or the gradients that a loop takes itself.
#
# A training is *unknown* until it is seen to train, *idle* where a step does not. It is *probed* on a whole batch or,
# in the first batches of an eager loop, on trial. From then on its batches are *divided*, or every rank computes them
# *whole*. It is *refused* where something else was trained among divided batches than had been probed, and parts of a
# batch are not enough for it.


class TrainingState(Enum):
    """What is known of a training."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    PROBED = "probed"
    DIVIDED = "divided"
    WHOLE = "whole"
    REFUSED = "refused"


class TrainingEvent(Enum):
    """What has been seen of a training."""

    NOTHING_TRAINED = "a call has made no gradient and no optimizer's step"
    TRAINED = "it has trained, with a whole batch"
    INDEPENDENT = "its gradients and numbers are means or sums over rows"
    MIXED = "they are neither, or it takes one number of rows"
    NOT_SHARED = "the sync policy averages weights, which asks for no probe"
    SPOILT = "a part of a batch has been trained that was not enough"


_S, _E = TrainingState, TrainingEvent
TRANSITIONS = {
    (_S.UNKNOWN, _E.NOTHING_TRAINED): _S.IDLE,
    (_S.UNKNOWN, _E.TRAINED): _S.PROBED,
    (_S.UNKNOWN, _E.NOT_SHARED): _S.DIVIDED,
    (_S.IDLE, _E.NOTHING_TRAINED): _S.IDLE,
    (_S.IDLE, _E.TRAINED): _S.PROBED,
    (_S.IDLE, _E.NOT_SHARED): _S.DIVIDED,
    (_S.PROBED, _E.INDEPENDENT): _S.DIVIDED,
    (_S.PROBED, _E.MIXED): _S.WHOLE,
    (_S.PROBED, _E.SPOILT): _S.REFUSED,
    (_S.DIVIDED, _E.SPOILT): _S.REFUSED,
}
"""From a state and an event to the next state; what is not there cannot happen."""


def advance(state: TrainingState, event: TrainingEvent) -> TrainingState:
    """Return the state that follows `state` at `event`."""
    return TRANSITIONS[state, event]


# Compiled steps of hand-written loops: what is known of each, by which it is given parts of batches or whole ones.
#
# A step is a compiled function together with its arguments that are no tensors (a model, a switch): another model
# makes another step. `divided_loops` has what is known of each, and how that changes.
#
# What a step returns, and the variables of its gradients, belong to it: a number may be a sum in one step and a mean
# in the next. See `step_probe`.


@dataclass(kw_only=True, eq=False)
class CompiledStep:
    """A compiled function with its arguments that are no tensors.

    `held` keeps those alive, as they are told apart by their ids. `returns_rows`: whether it has returned more than
    single numbers. `times`: when it is probed again.
    """

    function: Any
    held: tuple[Any, ...]
    state: TrainingState = TrainingState.UNKNOWN
    returns_rows: bool = False
    times: CheckTimes = field(default_factory=CheckTimes)

    def note_outcome(self, outcome: Any) -> None:
        """Take note of what a call has returned."""
        leaves = tf.nest.flatten(outcome)
        self.returns_rows |= any(tf.is_tensor(leaf) and leaf.shape.rank != 0 for leaf in leaves)

    def note(self, event: TrainingEvent) -> None:
        """Take note of what has been seen of it."""
        self.state = advance(self.state, event)

    @property
    def why_whole(self) -> str:
        """Why it cannot take parts of a batch, as far as its signature and its graphs say; else an empty text.

        A step that draws is not probed: the states of its draws would begin again.
        """
        signature = tf.nest.flatten(self.function.input_signature or ())
        rows = [spec.shape[0] for spec in signature if spec.shape.rank and spec.shape[0]]
        if rows:
            return f"the step takes exactly {rows[0]} rows"
        graphs = [trace.graph for trace in self.function._list_all_concrete_functions()]
        return next((graph._harness_why_whole for graph in graphs if hasattr(graph, "_harness_why_whole")), "")


class CompiledSteps:
    """All steps that a script has called, and their probes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._steps: dict[tuple[Any, ...], CompiledStep] = {}

    def find(self, function: Any, args: Any, kwargs: Any) -> CompiledStep:
        """Return the step that a call of `function` makes."""
        fixed = [leaf for leaf in _leaves((args, kwargs)) if not _is_data(leaf)]
        key = (id(function), *map(_identity, fixed))
        if key not in self._steps:
            self._steps[key] = CompiledStep(function=function, held=tuple(fixed))
        return self._steps[key]

    def trace(self, step: CompiledStep, args: Any, kwargs: Any) -> bool:
        """Build the graph of a step that has not been called; tell whether it trains."""
        before = self._runtime.traced
        with self._runtime.collectives.trial.of(step):
            step.function.get_concrete_function(*args, **kwargs)
        return bool(self._runtime.traced != before or getattr(step.function, "_harness_steps", False))

    def probe(self, step: CompiledStep, args: Any, kwargs: Any) -> bool:
        """Find out by a whole batch that a step has just made whether its batches can be divided; all ranks together.

        Return False where that cannot be found out so: the step takes no batch, or has no graph.
        """
        runtime = self._runtime
        args, kwargs = as_tensors((args, kwargs))
        lengths = rows_in((args, kwargs))
        if len(lengths) != 1 or not step.function._list_all_concrete_functions():
            return False
        if not runtime.sync.shares_gradients or runtime.witness.is_witness:
            step.note(TrainingEvent.NOT_SHARED)
            return True
        step.note(TrainingEvent.TRAINED)
        if not runtime.begin_judged():
            step.note(TrainingEvent.MIXED)
            return True
        why = step.why_whole or self._mixing(step, args, kwargs)
        step.note(TrainingEvent.MIXED if why else TrainingEvent.INDEPENDENT)
        if why:
            runtime.compute_whole(why)
        return True

    def probe_again(self, step: CompiledStep, args: Any, kwargs: Any, rows: int) -> None:
        """Probe a step of divided batches again where that is due, by its arguments with `rows` rows; all ranks.

        Raises:
            UserError: it mixes rows now.
        """
        if (
            step.times.steps_until
            or not self._runtime.compares_with_one_process
            or not step.function._list_all_concrete_functions()
        ):
            return
        step.times.note_probe()
        if not self._independent(step, args, kwargs, rows, again=True):
            step.note(TrainingEvent.SPOILT)
            self._runtime.refuse_mixed(step.times.steps + 1)

    def _mixing(self, step: CompiledStep, args: Any, kwargs: Any) -> str:
        """Probe a step; return why its batches cannot be divided, if so."""
        independent = self._independent(step, args, kwargs, min(rows_in((args, kwargs))), again=False)
        return "" if independent else self._runtime.collectives.trial.why_whole

    def _independent(self, step: CompiledStep, args: Any, kwargs: Any, rows: int, *, again: bool) -> bool:
        runtime = self._runtime
        trial = runtime.collectives.trial
        gather = partial(runtime.collectives.gather, label="trial of the gradients")
        seeds = [state for state in runtime.variables.seeds if initialised([state])]
        with runtime.quietly(), undrawn([*runtime.variables.untrained, *seeds]), trial.of(step):
            return probe_function(trial, step.function, args, kwargs, rows, gather, again=again)


def as_tensors(structure: Any) -> Any:
    """Return `structure` with tensors in the place of arrays."""
    return tf.nest.map_structure(
        lambda leaf: tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, structure
    )


def rows_in(structure: Any) -> set[int]:
    """Return how many rows the parts of a batch have, as far as they have any."""
    return {int(length(leaf)) for leaf in _leaves(structure) if has_rows(leaf)}


def _leaves(structure: Any) -> Sequence[Any]:
    return list(tf.nest.flatten(structure, expand_composites=False))


def _is_data(leaf: Any) -> bool:
    return isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, np.ndarray, np.generic))


def _identity(leaf: Any) -> Any:
    """Return what tells one argument from another, as far as a graph is another for it."""
    if isinstance(leaf, tf.Variable):
        return ("variable", str(leaf.shape), leaf.dtype)
    return (type(leaf), leaf) if isinstance(leaf, (bool, int, float, str, bytes, type(None))) else id(leaf)


# Calls of compiled steps in hand-written loops: each is given this rank's part of a batch, or all of it.


class StepCalls:
    """Replaces the making and calling of compiled functions."""

    def __init__(self, runtime: Runtime, scalars: Scalars, end_trial: Callable[[], None]) -> None:
        self._runtime = runtime
        self._scalars = scalars
        self._end_trial = end_trial
        self.steps = CompiledSteps(runtime)

    def divide(self, batch: Any) -> Any:
        """Return this rank's rows of a `batch` of all ranks."""
        runtime = self._runtime
        runtime.note(Note(code=NoteCode.LOOP_DIVIDED))
        rank, size = runtime.world.rank, runtime.world.size
        share = divide(batch, rank, size)
        runtime.divided += 1
        rows = int(length(leading(share.data)) if share.rows is None else share.rows)
        place = (rank * rows, size * rows) if share.place is None else share.place.numpy()
        runtime.rows.set(rows, place)
        return share.data

    def options(self, original: Callable[..., Any], function: Any, fn: Callable[..., Any], scope_type: Any) -> Any:
        """Have a compiled function notice that it trains: what is traced is wrapped, inside of autograph."""
        if function._jit_compile:
            self._runtime.note(Note(code=NoteCode.NOT_COMPILED_BY_XLA))
            function._jit_compile = None
        options = original(function, fn, scope_type)
        traced = options.python_function

        def watching(*args: Any, **kwargs: Any) -> Any:
            traced_before = self._runtime.traced
            outcome = traced(*args, **kwargs)
            if self._runtime.traced != traced_before and not self._runtime.in_trainer:
                function._harness_steps = True
            return outcome

        watching.__name__ = getattr(traced, "__name__", "traced")
        options.python_function = watching
        return options

    def call(self, original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a compiled function of the script's, with this rank's part of a batch or with all of it."""
        runtime = self._runtime
        if not tf.executing_eagerly():
            outcome = original(function, *args, **kwargs)
            if getattr(function, "_harness_steps", False):
                runtime.traced += 1  # what calls a function that trains does so too
            return outcome
        if runtime.calls or runtime.in_trainer or runtime.quiet or runtime.own_rows.present:
            return self._stepped(original, function, args, kwargs, function)
        step = self.steps.find(function, args, kwargs)
        call = partial(self._stepped, original, function, owner=step)
        loop = runtime.loop
        if tf.config.functions_run_eagerly():
            return call(args, kwargs)
        if loop is None or loop.batch is None:
            return self._call_with_arrays(step, call, args, kwargs)
        if loop.is_divided:
            return self._call_with_part(step, call, args, kwargs, loop)
        return self._call_whole(step, call, args, kwargs, loop)

    def _call_with_arrays(self, step: CompiledStep, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a step of a loop that has no data set: this rank's rows of its arrays are divided, call for call.

        Its first call is whole, and so are all of one that returns rows.
        """
        runtime = self._runtime
        if step.state is TrainingState.IDLE:
            return self._call_whole(step, call, args, kwargs, None)
        self._end_trial()
        runtime.signals.meet()
        runtime.rows.set_undivided()
        outer_loop = runtime.loop
        runtime.loop = None
        try:
            batch = as_tensors((args, kwargs))
            runtime.rows.present_rows = max(rows_in(batch), default=0)
            if step.state is TrainingState.DIVIDED and not step.returns_rows and not indivisible(batch):
                rows = max(rows_in(batch))
                self.steps.probe_again(step, batch[0], batch[1], rows)
                step.times.steps += 1
                batch = self.divide(batch)
                runtime.rows.present_rows = max(rows_in(batch))
                return call(*batch)
            if step.state is not TrainingState.WHOLE or not runtime.rows.present_rows:
                return self._call_whole(step, call, args, kwargs, None)
            with runtime.rows.counted_once(runtime.rows.present_rows):  # as many as the witness has
                return self._call_whole(step, call, args, kwargs, None)
        finally:
            runtime.loop = outer_loop
            runtime.rows.set_undivided()

    def _call_whole(
        self, step: CompiledStep, call: Callable[..., Any], args: Any, kwargs: Any, loop: DatasetLoop | None
    ) -> Any:
        """Call a step with a batch that every rank has whole; if that shows that it trains, probe it."""
        steps_before = self._runtime.steps
        outcome = call(args, kwargs)
        if self._runtime.steps == steps_before:
            if step.state is TrainingState.UNKNOWN:
                step.note(TrainingEvent.NOTHING_TRAINED)
            return outcome
        step.note_outcome(outcome)
        step.times.steps += 1
        if loop is not None:
            loop.steps.add(step)
        settled = step.returns_rows if loop is None else id(step) in loop.owners
        if step.state in (TrainingState.UNKNOWN, TrainingState.IDLE) and not settled:
            check_rows(self._runtime, [leaf for leaf in tf.nest.flatten(as_tensors((args, kwargs))) if has_rows(leaf)])
            if not self.steps.probe(step, args, kwargs) and loop is not None:
                loop.takes_gradients = True  # the trial finds out
                loop.owners.add(id(step))
        return outcome

    def _call_with_part(
        self, step: CompiledStep, call: Callable[..., Any], args: Any, kwargs: Any, loop: DatasetLoop
    ) -> Any:
        """Call a step with this rank's part of the batch at hand, or with all of it where nothing else is right."""
        batch_rows = max(rows_in(loop.batch))
        part_rows = max(rows_in(loop.part))
        if id(step) in loop.owners and step.state is TrainingState.UNKNOWN:  # the trial has found out
            step.note(TrainingEvent.TRAINED)
            step.note(TrainingEvent.INDEPENDENT)
        if step.state is TrainingState.UNKNOWN and not self.steps.trace(step, args, kwargs):
            step.note(TrainingEvent.NOTHING_TRAINED)
        argument_rows = rows_in(as_tensors((args, kwargs)))
        has_part_only = part_rows in argument_rows and (batch_rows == part_rows or batch_rows not in argument_rows)
        fits = not argument_rows or has_part_only
        if step.state is TrainingState.DIVIDED and fits:
            if batch_rows >= 2 * self._runtime.world.size:
                self.steps.probe_again(step, as_tensors(args), as_tensors(kwargs), part_rows)
            step.times.steps += 1
            return call(args, kwargs)
        if step.state is TrainingState.IDLE:
            return call(args, kwargs)
        loop.is_divided = False
        with self._runtime.rows.counted_once(batch_rows):
            args, kwargs = self._completed((args, kwargs), loop, part_rows)
            outcome = self._call_whole(step, call, args, kwargs, loop)
        loop.is_divided = True
        if part_rows not in argument_rows:
            return outcome
        first, count = bounds(batch_rows, self._runtime.world.rank, self._runtime.world.size)
        rank_rows = partial(some, start=min(first, batch_rows - 1), count=max(count, 1))
        return tf.nest.map_structure(lambda leaf: rank_rows(leaf) if rows_in(leaf) == {batch_rows} else leaf, outcome)

    def _completed(self, arguments: Any, loop: DatasetLoop, rows: int) -> Any:
        """Return a step's `arguments` with the rows of all ranks in the place of this rank's `rows`."""
        pairs = zip(tf.nest.flatten(loop.part), tf.nest.flatten(loop.batch), strict=True)
        whole_leaves = {id(part): whole for part, whole in pairs if has_rows(part)}
        batch_rows = max(rows_in(loop.batch))
        size = self._runtime.world.size
        counts = [bounds(batch_rows, rank, size)[1] for rank in range(size)]

        def complete(leaf: Any) -> Any:
            if id(leaf) in whole_leaves:
                return whole_leaves[id(leaf)]
            if not has_rows(leaf) or int(length(leaf)) != rows or not isinstance(leaf, tf.Tensor):
                return leaf
            parts = self._runtime.collectives.gather(leaf.numpy(), "rows of a step")
            return tf.concat([part[:count] for part, count in zip(parts, counts, strict=True)], 0)

        return tf.nest.map_structure(complete, as_tensors(arguments))

    def _stepped(self, original: Callable[..., Any], function: Any, args: Any, kwargs: Any, owner: Any) -> Any:
        """Call a compiled function; return its outcome, in which the single numbers of a step are of all ranks' rows.

        `owner` stands for the function where it is known which of its numbers are sums.
        """
        runtime = self._runtime
        trial = runtime.collectives.trial
        steps_before = runtime.steps
        runtime.calls += 1  # in a step of the trial, what is called inside is called from Python too
        try:
            with trial.of(owner) if isinstance(owner, CompiledStep) else nullcontext():
                outcome = original(function, *args, **kwargs)
        finally:
            runtime.calls -= 1
        if runtime.in_trainer or runtime.quiet:
            return outcome
        if getattr(function, "_harness_steps", False) and not tf.config.functions_run_eagerly():
            runtime.count_step()
        elif steps_before == runtime.steps:
            return outcome
        outcome = self._scalars.combine(outcome, owner)
        if runtime.calls:
            return outcome
        outcome = runtime.witness.numbers(function.__name__, outcome)
        if runtime.loop is None:
            runtime.witness.state(function.__name__)
        return outcome


def indivisible(batch: Any) -> str:
    """Return why a batch has no rows to divide; an empty text where it has."""
    rows = rows_in(batch)
    if not rows:
        return "the script trains on single rows"
    return f"the parts of a batch have {' and '.join(map(str, sorted(rows)))} rows" if len(rows) > 1 else ""


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

    What the script takes out of TensorFlow meanwhile is seen to by `TakenValues`.
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
        self._observed_steps = 0  # of the script, after which its variables were looked at
        self._taken_values = TakenValues(runtime)

    def install(self) -> None:
        """Replace the iterator's `__next__`, the making and calling of compiled functions, and maps in any order."""
        for parallel in (_ParallelMapDataset, _ParallelInterleaveDataset):
            replace(parallel, "__init__", ("self", "input_dataset", "map_func"), self._keep_order)
        replace(OwnedIterator, "__init__", ("self", "dataset", "components"), self._init)
        for name in ("__next__", "get_next"):
            replace(OwnedIterator, name, ("self",), self._next)
        replace(Function, "__init__", ("self", "python_function", "name"), self._make)
        replace(Function, "_generate_tracing_options", ("self", "fn", "scope_type"), self._calls.options)
        replace(Function, "__call__", ("self",), self._calls.call)
        replace(BaseOptimizer, "__init__", ("self", "learning_rate"), self._make)
        replace(ResourceVariable, "__init__", ("self",), self._make_variable)
        self._taken_values.install()

    def _keep_order(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Make a parallel map of a data set without its own choice of order: `rows.in_order` decides.

        A map that may yield its elements in any order yields another order on every rank. One that draws random numbers
        makes one element at a time: its threads would draw in any order.
        """
        call = inspect.signature(original).bind(*args, **kwargs)
        call.arguments["deterministic"] = None
        original(*call.args, **call.kwargs)
        graph = call.args[0]._map_func.function.graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        draws = any(node.op.startswith(_DATASET_DRAWS) for node in nodes)
        if draws and self._runtime.ranks > 1 and not self._runtime.settings.unjudged:
            call.arguments["num_parallel_calls"] = 1
            original(*call.args, **call.kwargs)

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
        if is_library(_maker(sys._getframe())):
            runtime.witness.note_variable(variable)
            return
        rows = variable.shape[0] if variable.shape.rank else 0
        has_batch = loop is not None and loop.batch is not None
        is_of_batch = has_batch and rows == runtime.rows.present_rows > 1
        if not is_of_batch:
            runtime.witness.note_variable(variable)
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
        elif ends and not runtime.begin_judged():
            self._current.note(TrainingEvent.MIXED)
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
        self._taken_values.end_batch()
        self.end_trial()
        if runtime.steps != self._observed_steps:
            self._observed_steps = runtime.steps
            runtime.witness.state("loop")
        runtime.signals.meet()
        runtime.rows.set_undivided()  # also after the last batch
        runtime.loop = loop
        loop.batch = None
        loop.is_divided = False
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
        if on_trial and not loop.why_whole:
            loop.why_whole = loop.why_untried
        if loop.why_whole:
            runtime.compute_whole(loop.why_whole)
            on_trial = False
            computes_whole = True
        elif trial is not None and trial.state is TrainingState.UNKNOWN and on_trial and not runtime.begin_judged():
            trial.note(TrainingEvent.TRAINED)
            trial.note(TrainingEvent.MIXED)
            on_trial = False
            computes_whole = True
        elif trial is not None:
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


_ON_TRIAL = (TrainingState.UNKNOWN, TrainingState.PROBED)


_DATASET_DRAWS = (
    "Random",
    "TruncatedNormal",
    "Multinomial",
    "StatefulUniform",
    "StatefulStandardNormal",
    "Rng",
    "AssignV",
)


def _maker(frame: Any) -> str:
    """Return the file of the code that makes something by TensorFlow, above `frame`."""
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _MAKING):
        frame = frame.f_back
    return str(frame.f_code.co_filename)


_MAKING = ("/harness/transparent/", "/tensorflow/python/", "functools.py", "contextlib.py")


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
