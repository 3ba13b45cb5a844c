"""Trials, with which the ranks find out what a script's gradients and numbers are: means over rows, sums, or neither.

In the trial of a loop rank 0 makes the step of the whole batch, which counts; the others the same step of the batch
with every row twice, which does not. A mean over rows is the same for both, a sum twice as large. A step of Keras's
`fit` is made for observation only, of a batch and of its parts: see `batch_coupling.is_sum`.
"""

import contextlib
import math
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute
from keras.src.random import seed_generator
from tensorflow.python.eager import context

from harness.transparent.batch_coupling import Shadow, is_sum, steady, trial_batches, vector
from harness.transparent.rows import leading, length, own_variable, some, together

_MEANS, _SUMS = (0.5, 1.4), (1.5, 3.0)  # of the doubled batch's to the whole one's, where random layers add noise
_PARALLEL = 0.9995  # cosine above which the two differ in length only: no random layer is at work
_CLOSE = 0.03


class DoubledBatch(NamedTuple):
    """Of one owner's numbers on a doubled batch, against those of the batch: inner product and both squared norms."""

    label: str
    product: float
    square: float
    own: float

    @classmethod
    def of(cls, label: str, doubled: Sequence[Any], whole: Sequence[Any]) -> "DoubledBatch":
        """Compare lists of tensors of equal shapes."""
        pairs = [(_numbers(a), _numbers(b)) for a, b in zip(doubled, whole, strict=True)]
        return cls(
            label,
            float(sum(a @ b for a, b in pairs)),
            float(sum(b @ b for _, b in pairs)),
            float(sum(a @ a for a, _ in pairs)),
        )

    def is_sum(self) -> bool | None:
        """Tell whether the numbers are sums over rows, not means; None of a gradient that is neither."""
        if not self.square or not self.own or not math.isfinite(self.product / self.square):
            return False  # nothing of it is of the rank's own rows
        ratio = self.product / self.square
        noisy = self.product**2 <= _PARALLEL**2 * self.square * self.own
        if (noisy or abs(ratio - 1) < _CLOSE) and _MEANS[0] < ratio < _MEANS[1]:
            return False
        if (noisy or abs(ratio - 2) < _CLOSE) and _SUMS[0] < ratio < _SUMS[1]:
            return True
        return None if self.label == "gradients" else False


@dataclass(kw_only=True)
class GradientProbe:
    """What a step of Keras's `fit` does that is made for observation only, each with its owner (see `Trial`).

    That is the gradients its tapes yield, and the numbers it reports. Losses that are known to be of all ranks' rows
    are left out. `whole`: the same of the whole batch, already made.
    """

    whole: "GradientProbe | None" = None
    gradients: list[tuple[object, Sequence[Any]]] = field(default_factory=list)
    numbers: dict[int, tuple[object, Any]] = field(default_factory=dict)

    def taken(self, owner: object, gradients: Sequence[Any]) -> list[Any]:
        """Take note of what a tape yields; return those of the whole batch, which the script's next moves follow."""
        self.gradients.append((owner, gradients))
        known = self.whole.gradients[len(self.gradients) - 1][1] if self.whole is not None else gradients
        return [
            own + tf.stop_gradient(other - own) if isinstance(own, tf.Tensor) else own
            for own, other in zip(gradients, known, strict=True)
        ]

    def of(self, owner: object) -> list[Any]:
        """Return all gradients of `owner`."""
        return [each for one, gradients in self.gradients if one is owner for each in gradients]


class Trial:
    """What is known of the numbers of every `owner`: a variable, a metric, a place in what a function returns."""

    def __init__(self) -> None:
        self.active = False
        self.probe: GradientProbe | None = None
        self.shadow: Shadow | None = None
        self.mixing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._owners: dict[int, object] = {}
        self._positions: dict[tuple[int, object], object] = {}
        self._flags: dict[int, tf.Variable] = {}
        self._sums: set[int] = set()
        self._seen: dict[int, DoubledBatch] = {}

    def flag(self, owner: object) -> tf.Tensor:
        """Return whether the numbers of `owner` are sums, a boolean scalar, also for graphs built before the trial."""
        if id(owner) not in self._flags:
            self._owners[id(owner)] = owner  # held: another may not get its id
            self._flags[id(owner)] = own_variable(id(owner) in self._sums, "harness_sum")
        return self._flags[id(owner)].read_value()

    def position(self, function: object, place: object) -> object:
        """Return what stands for the number at `place` of what `function` returns."""
        self._owners[id(function)] = function
        return self._positions.setdefault((id(function), place), (function, place))

    def is_sum(self, owner: object) -> bool:
        """Tell whether the numbers of `owner` have been found to be sums over rows."""
        return id(owner) in self._sums

    def observe(self, owner: object, label: str, own: Sequence[tf.Tensor], whole: Sequence[tf.Tensor]) -> None:
        """Compare this rank's `own` numbers with rank 0's, of the whole batch; only the step of the trial counts."""
        if self.active:
            self._owners[id(owner)] = owner
            self._seen[id(owner)] = DoubledBatch.of(label, own, whole)

    def conclude(self, gather: Callable[[object], list[Any]]) -> bool:
        """End the step of the trial; `gather` collects a value from all ranks. All ranks together.

        Tell whether every gradient is a mean or a sum over rows.
        """
        owners = list(self._seen)
        found = gather(list(self._seen.values()))
        self.active = False
        self._seen = {}
        sums = [seen.is_sum() for seen in found[-1]]
        for owner, summed in zip(owners, sums, strict=True):
            if summed:
                self.note(self._owners[owner], True)
        return None not in sums

    def note(self, owner: object, summed: bool) -> None:
        """Take note whether the numbers of `owner` are sums over rows."""
        self._owners[id(owner)] = owner
        (self._sums.add if summed else self._sums.discard)(id(owner))
        if id(owner) in self._flags:
            self._flags[id(owner)].assign(summed)


_ROWS = 64  # of a batch are enough


def probe_step(
    trial: Trial, trainer: Any, step: Callable[[Any], Any], data: Any, gather: Callable[[object], list[Any]]
) -> bool:
    """Find out what a training or test step makes of the first rows of `data`, of their two parts and of them again.

    Nothing of it stays. All ranks together; rank 0's findings count. Return whether the rows of a training step are
    independent.
    """
    few = some(data, 0, min(_ROWS, int(length(leading(data)))))
    few = few if int(length(leading(few))) > 1 else together([few, few])
    if not all(layer.built for layer in trainer._flatten_layers()):  # what the step builds could not be put back
        _probed(trial, trainer, tf.function(step).get_concrete_function, few)
    rows = int(length(leading(few)))
    batches = trial_batches(few, rows)
    with steady():
        whole = _probed(trial, trainer, step, batches[0])
        try:
            probes = [whole, *(_probed(trial, trainer, step, batch, whole) for batch in batches[1:])]
        except (tf.errors.InvalidArgumentError, ValueError):  # on every rank: to the step a part is not a batch
            trial.probe = None
            return False
    owners = {id(owner): owner for owner, _ in whole.gradients}.values()
    seen = [(owner, [vector(probe.of(owner)) for probe in probes]) for owner in owners]
    gradients = [(owner, is_sum(each, rows) if np.any(each[0]) else None) for owner, each in seen]  # a hinge has none
    numbers = [
        (owner, is_sum([vector([probe.numbers[key][1]]) for probe in probes], rows))
        for key, (owner, _) in whole.numbers.items()
    ]
    found = gather([summed for _, summed in (*gradients, *numbers)])
    for (owner, _), summed in zip((*gradients, *numbers), found[0], strict=True):
        trial.note(owner, bool(summed))
    return not any(None in each[: len(gradients)] for each in found)


@contextlib.contextmanager
def undrawn(kept: Sequence[Any]) -> Iterator[None]:
    """Put back what TensorFlow draws eagerly with states of its own, or of generators among the `kept` variables."""
    eager, before = context.context(), [(variable, tf.identity(tf.convert_to_tensor(variable))) for variable in kept]
    seeds = eager._rng.getstate()
    yield
    for variable, value in before:
        variable.assign(value)
    eager._rng.setstate(seeds)
    eager.clear_kernel_cache()  # which keeps how far each seed's numbers have been drawn


def _probed(
    trial: Trial, trainer: Any, step: Callable[[Any], Any], batch: Any, whole: GradientProbe | None = None
) -> GradientProbe:
    trial.probe = probe = GradientProbe(whole=whole)
    with _unchanged(trainer):
        logs = step(batch)
    trial.probe = None
    for name, value in logs.items() if isinstance(logs, dict) else ():
        if tf.is_tensor(value) and value.shape.rank == 0:
            position = trial.position(trainer, (step.__name__, name))
            probe.numbers[id(position)] = (position, value)
    return probe


def _numbers(value: Any) -> Any:
    return np.float64(tf.convert_to_tensor(value).numpy()).ravel()


@contextlib.contextmanager
def _unchanged(trainer: Any) -> Iterator[None]:
    """Put back the variables of a model, its metrics, optimizer and attributes, and of Keras's draws without a seed."""
    generator, seeds = get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR), random.Random()
    seeds.setstate(random.getstate())
    held = [value for layer in trainer._flatten_layers() for value in vars(layer).values()]
    listed = [part for value in held for part in (value if isinstance(value, (list, tuple)) else [value])]
    own = [part for part in listed if isinstance(part, tf.Variable)]
    own += [generator.state] if generator else []
    variables = {id(v): v for v in (*trainer.variables, *trainer.metrics_variables, *trainer.optimizer.variables, *own)}
    before = [(variable, tf.identity(tf.convert_to_tensor(variable))) for variable in variables.values()]
    vars(seed_generator)["python_random"] = seeds  # first seeds: from Python's own, a thread of the data may draw
    try:
        yield
    finally:
        set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)
        vars(seed_generator)["python_random"] = random
        for variable, value in before:
            variable.assign(value)
        for metric in trainer.metrics:  # what the step has made of a compiled metric was not there before
            if any(id(variable) not in variables for variable in metric.variables):
                metric.reset_state()
