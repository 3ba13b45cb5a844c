"""Probes of compiled steps: what a step makes of a batch and of its parts, before its batches are divided.

A step is made four times for observation only: with some rows of a batch, with two parts of these rows, and with all of
them again, each time from the same state. Afterwards variables, random numbers and metrics are what they were before.
All ranks probe the same rows, and rank 0's result counts.
"""

import contextlib
import io
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute
from keras.src.random import seed_generator
from tensorflow.python.eager import context

from harness.transparent.batch_rows import leading, length, some, together
from harness.transparent.probe.batch_coupling import MIXED, first_part, is_sum, mixes, steady, trial_batches, vector
from harness.transparent.probe.gradient_probe import GradientProbe, Trial

ROWS = 64  # of a batch are enough
_LATER_ROWS = 32
_FIRST_CHECK = 32  # the step of a training before which it is probed again, and then before 64, 128 ...
_VANISHED = 1e-3  # of the greatest length that gradients have had: below it, rounding is left
_STATE = 1e-2  # of how far a variable moves in a step

Gather = Callable[[object], list[Any]]


@dataclass(kw_only=True)
class CheckTimes:
    """When a training of divided batches is probed again. `steps`: those that it has made; `due`: the next to probe."""

    steps: int = 0
    due: int = _FIRST_CHECK

    @property
    def steps_until(self) -> int:
        """How many steps may be made before one that is to be probed; 0 if that is the next one."""
        return max(0, self.due - self.steps - 1)

    def note_probe(self) -> None:
        """Take note that the next step has been probed."""
        while self.steps_until == 0:
            self.due *= 2


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
        """Return the values of variables that have changed, by place; `counted` handles are left out.

        Of those without fractions only single ones are looked at: the others may be states of generators.
        """
        moved = {}
        for place, (handle, value) in enumerate(zip(self.handles, self._values, strict=True)):
            is_looked_at = value.dtype.is_floating or value.shape.rank == 0
            if not is_looked_at or id(handle) in counted:
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


def probe_trainer(
    trial: Trial,
    trainer: Any,
    step: Callable[[Any], Any],
    data: Any,
    gather: Gather,
    script_variables: Sequence[Any],
    *,
    again: bool = False,
) -> bool:
    """Tell whether rows are independent in a training or test `step` of a Keras model, from the first rows of `data`.

    Note which of its gradients and numbers are sums. The `script_variables`, which the script has made itself, are put
    back like those of the model. `again`: its batches are divided already, see `_judged_again`.
    """
    few = some(data, 0, min(_LATER_ROWS if again else ROWS, int(length(leading(data)))))
    few = few if int(length(leading(few))) > 1 else together([few, few])
    if not all(layer.built for layer in trainer._flatten_layers()):  # what the step builds could not be put back
        with _unchanged(trainer, script_variables):
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

    with _unchanged(trainer, script_variables) as held:
        rows = int(length(leading(few)))
        judge = _judged_again if again else _judged
        return judge(trial, run, trial_batches(few, rows), rows, held, gather)


def probe_function(
    trial: Trial, function: Any, args: Any, kwargs: Any, rows: int, gather: Gather, *, again: bool = False
) -> bool:
    """Tell whether rows are independent in a compiled `function`, from its arguments.

    Tensors with `rows` rows are the batch. Note which of its gradients and numbers are sums. `again`: its batches are
    divided already, see `_judged_again`.
    """
    if rows < 2:
        return again
    count = min(_LATER_ROWS if again else ROWS, rows)

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
    judge = _judged_again if again else _judged
    return judge(trial, run, batches, count, held, gather)


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
    probes, refuses_parts = _made(trial, run, batches, held)
    owners, verdicts = _verdicts(trial, probes, rows) if not refuses_parts else ([], [])
    reasons = [reason for probe in probes for reason in probe.whole_for]
    trial.why_whole = reasons[0] if reasons else MIXED
    mixes_rows = refuses_parts or None in verdicts or bool(reasons) or _moves_by_rows(probes, held)
    rank_results = gather((mixes_rows, verdicts))
    if any(rank_mixes for rank_mixes, _ in rank_results):
        return False
    for owner, summed in zip(owners, rank_results[0][1], strict=True):
        trial.note(owner, bool(summed))
    return True


def _judged_again(
    trial: Trial,
    run: Callable[[GradientProbe, Any], None],
    batches: Sequence[Any],
    rows: int,
    held: HeldState,
    gather: Gather,
) -> bool:
    """Make the four steps; tell whether gradients are still the sums or means over rows that they were taken for.

    Gradients of which nothing but rounding is left say nothing, and nor do steps that take no parts.
    """
    probes, refuses_parts = _made(trial, run, batches, held)
    owners = [] if refuses_parts else _owners(probes[0])
    are_apart = False
    for owner in owners:
        gradients = [vector(probe.of(owner)) for probe in probes]
        is_alike = len({len(gradient) for gradient in gradients}) == 1
        if is_alike and _lasts(trial, owner, gradients[0]):
            are_apart |= mixes(gradients, rows, summed=trial.is_sum(owner))
    return not any(gather(are_apart))


def _lasts(trial: Trial, owner: object, gradient: "np.ndarray[Any, Any]") -> bool:
    """Tell whether more is left of a gradient of `owner` than rounding."""
    size = float(np.linalg.norm(gradient))
    longest = max(trial.longest.get(id(owner), 0.0), size if np.isfinite(size) else 0.0)
    trial.longest[id(owner)] = longest
    return size > _VANISHED * longest


def _made(
    trial: Trial, run: Callable[[GradientProbe, Any], None], batches: Sequence[Any], held: HeldState
) -> tuple[list[GradientProbe], bool]:
    """Make a step of each of `batches` from the same state; return what is seen, and whether it refuses one."""
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
    return probes, refuses_parts


def _owners(probe: GradientProbe) -> list[object]:
    """Return the owners of the gradients of a step."""
    return list({id(owner): owner for owner, _ in probe.gradients}.values())


def _verdicts(trial: Trial, probes: Sequence[GradientProbe], rows: int) -> tuple[list[object], list[bool | None]]:
    """Return the owners of gradients and numbers, and whether those are sums over rows; None for neither."""
    whole = probes[0]
    owners = _owners(whole)
    verdicts = []
    for owner in owners:
        gradients = [vector(probe.of(owner)) for probe in probes]
        _lasts(trial, owner, gradients[0])
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
def _unchanged(trainer: Any, script_variables: Sequence[Any]) -> Iterator[HeldState]:
    """Put back variables of a model, its metrics and optimizer, of the script, and of Keras's draws without a seed."""
    generator = get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    seeds = random.Random()
    seeds.setstate(random.getstate())
    variables = [*trainer.variables, *trainer.metrics_variables, *trainer.optimizer.variables]
    variables += script_variables
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
