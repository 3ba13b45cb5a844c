"""Compiled steps of hand-written loops: what is known of each, by which it is given parts of batches or whole ones.

A step is a compiled function together with its arguments that are no tensors (a model, a switch): another model makes
another step. Each goes through these states:

| state | left when | for |
|---|---|---|
| unknown | a call has made no gradient and no optimizer's step | idle |
| unknown | a call has, of a whole batch; the probe found means and sums over rows | divided |
| unknown | the same; the probe found rows that are not independent, or that the step takes one number of rows | whole |
| idle | a later call trains | as unknown |

What a step returns, and the variables of its gradients, belong to it: a number may be a sum in one step and a mean in
the next. See `step_probe`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from harness.transparent.batch_coupling import MIXED
from harness.transparent.rows import has_rows, length
from harness.transparent.runtime import Runtime, initialised
from harness.transparent.step_probe import probe_function, undrawn


class StepState(Enum):
    """What is known of a compiled step."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    DIVIDED = "divided"
    WHOLE = "whole"


@dataclass(kw_only=True, eq=False)
class CompiledStep:
    """A compiled function with its arguments that are no tensors.

    `held` keeps those alive, as they are told apart by their ids. `averaged`: the resources of variables that the step
    moves towards means over rows. `returns_rows`: whether it has returned more than single numbers.
    """

    function: Any
    held: tuple[Any, ...]
    state: StepState = StepState.UNKNOWN
    averaged: list[Any] = field(default_factory=list)
    returns_rows: bool = False

    def note_outcome(self, outcome: Any) -> None:
        """Take note of what a call has returned."""
        leaves = tf.nest.flatten(outcome)
        self.returns_rows |= any(tf.is_tensor(leaf) and leaf.shape.rank != 0 for leaf in leaves)

    @property
    def is_fixed(self) -> bool:
        """Whether its signature asks for a number of rows."""
        return any(spec.shape.rank and spec.shape[0] for spec in tf.nest.flatten(self.function.input_signature or ()))


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
        if not runtime.sync.shares_gradients or runtime.witness.beside:
            step.state = StepState.DIVIDED
            return True
        if step.is_fixed:
            self._keep_whole(step, f"the step takes exactly {min(lengths)} rows")
            return True
        trial = runtime.collectives.trial
        gather = partial(runtime.collectives.gather, label="trial of the gradients")
        seeds = [state for state in runtime.seeds if initialised([state])]
        with runtime.quietly(), undrawn([*runtime.kept, *seeds]), trial.of(step):
            finding, handles = probe_function(trial, step.function, args, kwargs, min(lengths), gather)
        step.averaged = [handles[place] for place in finding.averaged]
        step.state = StepState.DIVIDED
        if finding.why:
            self._keep_whole(step, MIXED)
        return True

    def _keep_whole(self, step: CompiledStep, why: str) -> None:
        step.state = StepState.WHOLE
        self._runtime.whole(why)


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
