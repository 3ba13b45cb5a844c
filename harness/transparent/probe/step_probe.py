"""Probes of compiled steps: what a step makes of a batch and of its parts, before its batches are divided.

A step is made four times for observation only: with some rows of a batch, with two parts of these rows, and with all of
them again, each time from the same state. Afterwards variables, random numbers and metrics are what they were before.
All ranks probe the same rows, and rank 0's result counts.
"""

import contextlib
import io
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute
from keras.src.random import seed_generator
from tensorflow.python.eager import context

from harness.transparent.batch_rows import leading, length, some, together
from harness.transparent.probe.batch_coupling import first_part, is_sum, steady, trial_batches, vector
from harness.transparent.probe.gradient_probe import GradientProbe, Trial

ROWS = 64  # of a batch are enough
_STATE = 1e-2  # of how far a variable moves in a step

Gather = Callable[[object], list[Any]]


class HeldState:
    """The values of variables, by their resource `handles`, to be put back after a step that does not count."""

    def __init__(self, handles: Sequence[Any]) -> None:
        by_id = {id(handle): handle for handle in handles}
        self.handles = [handle for handle in by_id.values() if _holds_value(handle)]
        self._values = [read_variable(handle) for handle in self.handles]

    def restore(self) -> None:
        """Give the variables their values back."""
        for handle, value in zip(self.handles, self._values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def before(self, place: int) -> "np.ndarray[Any, Any]":
        """Return the value that is put back into the variable at `place`."""
        return numbers_of(self._values[place])

    def moved(self, counted: set[int]) -> "dict[int, np.ndarray[Any, Any]]":
        """Return the values of floating-point variables that have changed, by place; `counted` handles are left out."""
        moved = {}
        for place, (handle, value) in enumerate(zip(self.handles, self._values, strict=True)):
            if not value.dtype.is_floating or id(handle) in counted:
                continue
            current = read_variable(handle)
            if not (np.array_equal(current, value) or current.numpy().tobytes() == value.numpy().tobytes()):  # NaN
                moved[place] = numbers_of(current)
        return moved


def read_variable(handle: Any) -> tf.Tensor:
    """Return a copy of the value of the variable behind a resource `handle`."""
    dtype = tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)
    return tf.identity(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))


def numbers_of(value: tf.Tensor) -> "np.ndarray[Any, Any]":
    """Return the numbers of `value` in float64, one-dimensional."""
    return np.asarray(tf.cast(value, tf.float64)).ravel()


def _holds_value(handle: Any) -> bool:
    """Tell whether a resource is a variable of numbers that has a value."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return False
    dtype = tf.as_dtype(data.shape_and_type[0].dtype)
    if dtype in (tf.string, tf.variant, tf.resource):
        return False
    return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def handle_of(variable: Any) -> Any:
    """Return the resource of a variable, Keras's or TensorFlow's."""
    return variable.handle if isinstance(variable, tf.Variable) else variable.value.handle


def probe_trainer(trial: Trial, trainer: Any, step: Callable[[Any], Any], data: Any, gather: Gather) -> bool:
    """Tell whether rows are independent in a training or test `step` of a Keras model, from the first rows of `data`.

    Note which of its gradients and numbers are sums.
    """
    few = some(data, 0, min(ROWS, int(length(leading(data)))))
    few = few if int(length(leading(few))) > 1 else together([few, few])
    if not all(layer.built for layer in trainer._flatten_layers()):  # what the step builds could not be put back
        with _unchanged(trainer):
            trial.probe = GradientProbe()
            tf.function(step).get_concrete_function(few)
            trial.probe = None

    def run(probe: GradientProbe, batch: Any) -> None:
        logs = step(batch)
        probe.counted |= {id(handle_of(variable)) for variable in trainer.metrics_variables}
        probe.states = held.moved(probe.counted)
        for name, value in logs.items() if isinstance(logs, dict) else ():
            if tf.is_tensor(value) and value.shape.rank == 0 and not probe.is_result(value):
                position = trial.position(trial.training, (step.__name__, name))
                probe.numbers[id(position)] = (position, value)

    with _unchanged(trainer) as held:
        rows = int(length(leading(few)))
        return _judged(trial, run, trial_batches(few, rows), rows, held, gather)


def probe_function(trial: Trial, function: Any, args: Any, kwargs: Any, rows: int, gather: Gather) -> bool:
    """Tell whether rows are independent in a compiled `function`, from its arguments.

    Tensors with `rows` rows are the batch. Note which of its gradients and numbers are sums.
    """
    if rows < 2:
        return False
    count = min(ROWS, rows)

    def part(start: int, size: int) -> Any:
        return tf.nest.map_structure(
            lambda leaf: some(leaf, start, size) if _of_batch(leaf, rows) else leaf, (args, kwargs)
        )

    first = first_part(count)
    whole = part(0, count)
    batches = (whole, part(0, first), part(first, count - first), whole)
    traces = function._list_all_concrete_functions()
    resources = [handle for trace in traces for handle in trace.captured_inputs if handle.dtype == tf.resource]

    def run(probe: GradientProbe, batch: Any) -> None:
        positional, named = batch
        with contextlib.redirect_stdout(io.StringIO()):  # what it prints while it is traced
            outcome = function.python_function(*positional, **named)
        probe.states = held.moved(probe.counted)
        for place, value in enumerate(tf.nest.flatten(outcome)):
            if tf.is_tensor(value) and value.shape.rank == 0 and not probe.is_result(value):
                position = trial.position(trial.training, place)
                probe.numbers[id(position)] = (position, value)

    held = HeldState(resources)
    return _judged(trial, run, batches, count, held, gather)


def _of_batch(leaf: Any, rows: int) -> bool:
    rank = getattr(getattr(leaf, "shape", None), "rank", None)
    return tf.is_tensor(leaf) and bool(rank) and int(length(leaf)) == rows


def _judged(
    trial: Trial,
    run: Callable[[GradientProbe, Any], None],
    batches: Sequence[Any],
    rows: int,
    held: HeldState,
    gather: Gather,
) -> bool:
    """Make the four steps and note what their numbers are; tell whether rows are independent."""
    probes: list[GradientProbe] = []
    refuses_parts = False
    with steady():
        for batch in batches:
            probe = trial.probe = GradientProbe(whole=probes[0] if probes else None)
            try:
                run(probe, batch)
            except (tf.errors.InvalidArgumentError, ValueError):
                refuses_parts = True
                break
            finally:
                trial.probe = None
                held.restore()
            probes.append(probe)
    owners, verdicts = _verdicts(probes, rows) if not refuses_parts else ([], [])
    mixes = refuses_parts or None in verdicts or _moves_by_rows(probes, held)
    rank_results = gather((mixes, verdicts))
    if any(rank_mixes for rank_mixes, _ in rank_results):
        return False
    for owner, summed in zip(owners, rank_results[0][1], strict=True):
        trial.note(owner, bool(summed))
    return True


def _verdicts(probes: Sequence[GradientProbe], rows: int) -> tuple[list[object], list[bool | None]]:
    """Return the owners of gradients and numbers, and whether those are sums over rows; None for neither."""
    whole = probes[0]
    owners: list[object] = list({id(owner): owner for owner, _ in whole.gradients}.values())
    verdicts = []
    for owner in owners:
        gradients = [vector(probe.of(owner)) for probe in probes]
        verdicts.append(is_sum(gradients, rows) if np.any(gradients[0]) else None)  # a hinge may have none
    for key, (owner, _) in whole.numbers.items():
        owners.append(owner)
        verdicts.append(is_sum([vector([probe.numbers[key][1]]) for probe in probes], rows))
    return owners, verdicts


@np.errstate(all="ignore")  # the script may have asked NumPy to raise
def _moves_by_rows(probes: Sequence[GradientProbe], held: HeldState) -> bool:
    """Tell whether parts of a batch move variables differently: a queue of rows, or a moving mean of them."""
    places = {place for probe in probes for place in probe.states}
    for place in sorted(places):
        before = held.before(place)
        whole, first, second, again = (probe.states.get(place, before) for probe in probes)
        bound = _STATE * np.linalg.norm(whole - before) + 2 * np.linalg.norm(whole - again)
        if max(np.linalg.norm(whole - first), np.linalg.norm(whole - second)) > bound:
            return True
    return False


@contextlib.contextmanager
def undrawn(variables: Sequence[Any]) -> Iterator[None]:
    """Put back `variables`, among them the states of generators, and the state of what TensorFlow draws eagerly."""
    eager = context.context()
    states = [(variable, tf.identity(tf.convert_to_tensor(variable))) for variable in variables]
    seeds = eager._rng.getstate()
    yield
    for variable, value in states:
        variable.assign(value)
    eager._rng.setstate(seeds)
    eager.clear_kernel_cache()  # which keeps how far each seed's numbers have been drawn


@contextlib.contextmanager
def _unchanged(trainer: Any) -> Iterator[HeldState]:
    """Put back the variables of a model, its metrics, optimizer and attributes, and of Keras's draws without a seed."""
    generator = get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    seeds = random.Random()
    seeds.setstate(random.getstate())
    variables = [*trainer.variables, *trainer.metrics_variables, *trainer.optimizer.variables]
    variables += _attribute_variables(trainer)
    if generator:
        variables.append(generator.state)
    held = HeldState([handle_of(variable) for variable in variables])
    vars(seed_generator)["python_random"] = seeds  # for first seeds; a thread of the data may draw from Python's own
    try:
        yield held
    finally:
        set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)
        vars(seed_generator)["python_random"] = random
        held.restore()
        restored = {id(variable) for variable in variables}
        for metric in trainer.metrics:  # the step may have made variables of a compiled metric
            if any(id(variable) not in restored for variable in metric.variables):
                metric.reset_state()


def _attribute_variables(trainer: Any) -> list[tf.Variable]:
    """Return the variables of TensorFlow that the layers of a model hold as attributes or in lists."""
    variables = []
    for layer in trainer._flatten_layers():
        for value in vars(layer).values():
            parts = value if isinstance(value, (list, tuple)) else [value]
            variables += [part for part in parts if isinstance(part, tf.Variable)]
    return variables
