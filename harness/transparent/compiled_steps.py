"""Compiled steps of hand-written loops: what is known of each, by which it is given parts of batches or whole ones.

A step is a compiled function together with its arguments that are no tensors (a model, a switch): another model makes
another step. `training_states` has what is
known of each, and how that changes.

What a step returns, and the variables of its gradients, belong to it: a number may be a sum in one step and a mean in
the next. See `step_probe`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from harness.transparent.batch_coupling import MIXED
from harness.transparent.batch_rows import has_rows, length
from harness.transparent.replica_variables import initialised
from harness.transparent.runtime import Runtime
from harness.transparent.step_probe import probe_function, undrawn
from harness.transparent.training_states import TrainingEvent, TrainingState, advance


@dataclass(kw_only=True, eq=False)
class CompiledStep:
    """A compiled function with its arguments that are no tensors.

    `held` keeps those alive, as they are told apart by their ids. `returns_rows`: whether it has returned more than
    single numbers.
    """

    function: Any
    held: tuple[Any, ...]
    state: TrainingState = TrainingState.UNKNOWN
    returns_rows: bool = False

    def note_outcome(self, outcome: Any) -> None:
        """Take note of what a call has returned."""
        leaves = tf.nest.flatten(outcome)
        self.returns_rows |= any(tf.is_tensor(leaf) and leaf.shape.rank != 0 for leaf in leaves)

    def note(self, event: TrainingEvent) -> None:
        """Take note of what has been seen of it."""
        self.state = advance(self.state, event)

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
        if not runtime.sync.shares_gradients or runtime.witness.is_witness:
            step.note(TrainingEvent.NOT_SHARED)
            return True
        step.note(TrainingEvent.TRAINED)
        why = f"the step takes exactly {min(lengths)} rows" if step.is_fixed else self._mixing(step, args, kwargs)
        step.note(TrainingEvent.MIXED if why else TrainingEvent.INDEPENDENT)
        if why:
            runtime.compute_whole(why)
        return True

    def _mixing(self, step: CompiledStep, args: Any, kwargs: Any) -> str:
        """Probe a step; return why its batches cannot be divided, if so."""
        runtime = self._runtime
        trial = runtime.collectives.trial
        gather = partial(runtime.collectives.gather, label="trial of the gradients")
        seeds = [state for state in runtime.variables.seeds if initialised([state])]
        with runtime.quietly(), undrawn([*runtime.variables.untrained, *seeds]), trial.of(step):
            independent = probe_function(trial, step.function, args, kwargs, min(rows_in((args, kwargs))), gather)
        return "" if independent else MIXED


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
