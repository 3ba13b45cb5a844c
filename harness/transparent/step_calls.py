"""Calls of compiled steps in hand-written loops: each is given this rank's part of a batch, or all of it."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import tensorflow as tf

from harness.transparent.collectives import Scalars
from harness.transparent.compiled_steps import CompiledStep, CompiledSteps, as_tensors, rows_in
from harness.transparent.preflight import check_rows
from harness.transparent.rows import bounds, divide, has_rows, leading, length, some
from harness.transparent.runtime import Feeding, Runtime
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

    def options(self, original: Callable[..., Any], function: Any, fn: Callable[..., Any], scope_type: Any) -> Any:
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

    def call(self, original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        runtime = self._runtime
        if not tf.executing_eagerly():
            outcome = original(function, *args, **kwargs)
            if getattr(function, "_harness_steps", False):
                runtime.traced += 1  # what calls a function that trains does so too
            return outcome
        if runtime.calls or runtime.in_trainer or runtime.quiet or runtime.own.present:
            return self._stepped(original, function, args, kwargs, function)
        step = self._steps.find(function, args, kwargs)
        call = partial(self._stepped, original, function, owner=step)
        loop = runtime.feeding
        if tf.config.functions_run_eagerly():
            return call(args, kwargs)
        if loop is None or loop.whole is None:
            return self._call_with_arrays(step, call, args, kwargs)
        if loop.divided:
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
        runtime.rows.whole()
        feeding, runtime.feeding = runtime.feeding, None
        try:
            batch = as_tensors((args, kwargs))
            runtime.rows.shown = max(rows_in(batch), default=0)
            if step.state is TrainingState.DIVIDED and not step.returns_rows and not indivisible(batch):
                batch = self.divide(batch)
                runtime.rows.shown = max(rows_in(batch))
                return call(*batch)
            return self._call_whole(step, call, args, kwargs, None)
        finally:
            runtime.feeding = feeding
            runtime.rows.whole()

    def _call_whole(
        self, step: CompiledStep, call: Callable[..., Any], args: Any, kwargs: Any, loop: Feeding | None
    ) -> Any:
        """Call a step with a batch that every rank has whole; if that shows that it trains, probe it."""
        before = self._runtime.steps
        outcome = call(args, kwargs)
        if self._runtime.steps == before:
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
                loop.eager = True  # the trial finds out
                loop.owners.add(id(step))
        return outcome

    def _call_with_part(
        self, step: CompiledStep, call: Callable[..., Any], args: Any, kwargs: Any, loop: Feeding
    ) -> Any:
        """Call a step with this rank's part of the batch at hand, or with all of it where nothing else is right."""
        whole, part = max(rows_in(loop.whole)), max(rows_in(loop.part))
        if id(step) in loop.owners and step.state is TrainingState.UNKNOWN:  # the trial has found out
            step.note(TrainingEvent.TRAINED)
            step.note(TrainingEvent.INDEPENDENT)
        if step.state is TrainingState.UNKNOWN and not self._steps.trace(step, args, kwargs):
            step.note(TrainingEvent.NOTHING_TRAINED)
        given = rows_in(as_tensors((args, kwargs)))
        fits = not given or (part in given and (whole == part or whole not in given))
        if step.state is TrainingState.IDLE or (step.state is TrainingState.DIVIDED and fits):
            return call(args, kwargs)
        loop.divided = False
        with self._runtime.rows.counted_once(whole):
            args, kwargs = self._completed((args, kwargs), loop, part)
            outcome = self._call_whole(step, call, args, kwargs, loop)
        loop.divided = True
        if part not in given:
            return outcome
        first, count = bounds(whole, self._runtime.world.rank, self._runtime.world.size)
        own = partial(some, start=min(first, whole - 1), count=max(count, 1))
        return tf.nest.map_structure(lambda leaf: own(leaf) if rows_in(leaf) == {whole} else leaf, outcome)

    def _completed(self, arguments: Any, loop: Feeding, rows: int) -> Any:
        """Return what a step is given, of all ranks in the place of this rank's `rows`."""
        pairs = zip(tf.nest.flatten(loop.part), tf.nest.flatten(loop.whole), strict=True)
        known = {id(part): whole for part, whole in pairs if has_rows(part)}
        whole = max(rows_in(loop.whole))
        counts = [bounds(whole, rank, self._runtime.world.size)[1] for rank in range(self._runtime.world.size)]

        def complete(leaf: Any) -> Any:
            if id(leaf) in known:
                return known[id(leaf)]
            if not has_rows(leaf) or int(length(leaf)) != rows or not isinstance(leaf, tf.Tensor):
                return leaf
            parts = self._runtime.collectives.gather(leaf.numpy(), "rows of a step")
            return tf.concat([part[:count] for part, count in zip(parts, counts, strict=True)], 0)

        return tf.nest.map_structure(complete, as_tensors(arguments))

    def _stepped(self, original: Callable[..., Any], function: Any, args: Any, kwargs: Any, owner: Any) -> Any:
        """Call a compiled function; return what it returns, with the single numbers of a step those of all rows.

        `owner` stands for it where its numbers are known.
        """
        runtime, trial = self._runtime, self._runtime.collectives.trial
        before = runtime.steps
        runtime.calls += 1  # in a step of the trial, what is called inside is called from Python too
        try:
            with trial.of(owner) if isinstance(owner, CompiledStep) else nullcontext():
                outcome = original(function, *args, **kwargs)
        finally:
            runtime.calls -= 1
        if runtime.in_trainer or runtime.quiet:
            return outcome
        if getattr(function, "_harness_steps", False) and not tf.config.functions_run_eagerly():
            runtime.stepped()
        elif before == runtime.steps:
            return outcome
        outcome = self._scalars.combine(outcome, owner)
        return outcome if runtime.calls else runtime.witness.numbers(function.__name__, outcome)


def indivisible(batch: Any) -> str:
    """Return why a batch has no rows to divide, if so."""
    rows = rows_in(batch)
    if not rows:
        return "the script trains on single rows"
    return f"the parts of a batch have {' and '.join(map(str, sorted(rows)))} rows" if len(rows) > 1 else ""
