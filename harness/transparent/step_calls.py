"""Calls of compiled steps in hand-written loops: each is given this rank's part of a batch, or all of it."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import tensorflow as tf

from harness.schema.record_notes import Note, NoteCode
from harness.transparent.batch_rows import bounds, divide, has_rows, leading, length, some
from harness.transparent.collectives import Scalars
from harness.transparent.compiled_steps import CompiledStep, CompiledSteps, as_tensors, rows_in
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.preflight import check_rows
from harness.transparent.runtime import Runtime
from harness.transparent.training_states import TrainingEvent, TrainingState


class StepCalls:
    """Replaces the making and calling of compiled functions."""

    def __init__(self, runtime: Runtime, scalars: Scalars, end_trial: Callable[[], None]) -> None:
        self._runtime = runtime
        self._scalars = scalars
        self._end_trial = end_trial
        self._steps = CompiledSteps(runtime)

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
        step = self._steps.find(function, args, kwargs)
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
                batch = self.divide(batch)
                runtime.rows.present_rows = max(rows_in(batch))
                return call(*batch)
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
        if loop is not None:
            loop.steps.add(step)
        settled = step.returns_rows if loop is None else id(step) in loop.owners
        if step.state in (TrainingState.UNKNOWN, TrainingState.IDLE) and not settled:
            check_rows(self._runtime, [leaf for leaf in tf.nest.flatten(as_tensors((args, kwargs))) if has_rows(leaf)])
            if not self._steps.probe(step, args, kwargs) and loop is not None:
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
        if step.state is TrainingState.UNKNOWN and not self._steps.trace(step, args, kwargs):
            step.note(TrainingEvent.NOTHING_TRAINED)
        argument_rows = rows_in(as_tensors((args, kwargs)))
        has_part_only = part_rows in argument_rows and (batch_rows == part_rows or batch_rows not in argument_rows)
        fits = not argument_rows or has_part_only
        if step.state is TrainingState.IDLE or (step.state is TrainingState.DIVIDED and fits):
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
        return outcome if runtime.calls else runtime.witness.numbers(function.__name__, outcome)


def indivisible(batch: Any) -> str:
    """Return why a batch has no rows to divide; an empty text where it has."""
    rows = rows_in(batch)
    if not rows:
        return "the script trains on single rows"
    return f"the parts of a batch have {' and '.join(map(str, sorted(rows)))} rows" if len(rows) > 1 else ""
