"""What the ranks find out about a script's gradients and numbers: means over rows, sums, or neither.

A compiled step, of the script or of Keras, is made for observation only, with a batch and with its parts: see
`step_probe`. A loop that takes its gradients eagerly has a trial instead. In its first step rank 0 takes the whole
batch, and this step counts. The other ranks take the batch with every row twice, and their step does not count. A mean
over rows is the same for both; a sum is twice as large.
"""

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from harness.transparent.batch_rows import own_variable
from harness.transparent.probe.batch_coupling import MIXED, CouplingTrial

# Ratios of a doubled batch's numbers to those of the batch, where random layers add noise.
_MEANS = (0.5, 1.4)
_SUMS = (1.5, 3.0)
_PARALLEL = 0.9995  # cosine above which the two differ in length only: no random layer is at work
_CLOSE = 0.03


class DoubledBatch(NamedTuple):
    """The numbers of one owner for a batch with every row twice, compared with those for the batch.

    `product`: inner product of the two; `square`: squared norm for the batch; `doubled_square`: for the doubled batch.
    """

    label: str
    product: float
    square: float
    doubled_square: float

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
        """Tell whether the numbers are sums over rows, not means; None for a gradient that is neither."""
        if not self.square or not self.doubled_square or not math.isfinite(self.product / self.square):
            return False  # it does not follow from the rows
        ratio = self.product / self.square
        noisy = self.product**2 <= _PARALLEL**2 * self.square * self.doubled_square
        if (noisy or abs(ratio - 1) < _CLOSE) and _MEANS[0] < ratio < _MEANS[1]:
            return False
        if (noisy or abs(ratio - 2) < _CLOSE) and _SUMS[0] < ratio < _SUMS[1]:
            return True
        return None if self.label == "gradients" else False


@dataclass(kw_only=True)
class GradientProbe:
    """What a step has done that is made for observation only; owners as in `Trial`.

    - `gradients`: what its tapes have yielded, each with its owner.
    - `numbers`: what it reports, by id of the owner. Losses that are of all ranks' rows are left out.
    - `whole_for`: why it must have whole batches, as it lets something out of TensorFlow, say, while it runs.
    - `states`: the variables that it has changed, by their place among those that are put back.
    - `results`: results of metrics, which are of all ranks' rows; `counted`: the metrics' variables, by id.
    - `taped`: the variables, by id, whose gradients tapes have yielded.
    - `whole`: the probe of the whole batch, where this one is of a part.
    """

    whole: "GradientProbe | None" = None
    gradients: list[tuple[object, Sequence[Any]]] = field(default_factory=list)
    numbers: dict[int, tuple[object, Any]] = field(default_factory=dict)
    states: "dict[int, np.ndarray[Any, Any]]" = field(default_factory=dict)
    whole_for: list[str] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    counted: set[int] = field(default_factory=set)
    taped: set[int] = field(default_factory=set)

    def taken(self, owner: object, gradients: Sequence[Any]) -> list[Any]:
        """Note the gradients that a tape yields; return those of the whole batch, with which the script goes on."""
        self.gradients.append((owner, gradients))
        if self.whole is None:
            return list(gradients)
        whole_gradients = self.whole.gradients[len(self.gradients) - 1][1]
        return [_valued_as(part, whole) for part, whole in zip(gradients, whole_gradients, strict=True)]

    def of(self, owner: object) -> list[Any]:
        """Return all gradients of `owner`."""
        return [each for holder, gradients in self.gradients if holder is owner for each in gradients]

    def is_result(self, value: Any) -> bool:
        """Tell whether `value` is the result of a metric, which is of all ranks' rows."""
        return any(value is result for result in self.results)


class Trial:
    """What is known about the numbers of every `owner`: a variable, a metric, a place in what a function returns.

    `training` is the compiled step, of the script or of Keras, that the current gradients are of. A number may be a sum
    in one training and a mean in the next, also for the same variables. `active`: the step of the doubled batch goes
    on; `coupling`: the steps after it; `probe`: a step is made for observation only. `mixing`: Keras models whose rows
    are not independent. `why_whole`: why a step gets whole batches, after a probe that has found so. `longest`: the
    greatest length of gradients that probes have seen, by id of the owner.
    """

    def __init__(self) -> None:
        self.active = False
        self.found_sum = False
        self.why_whole = MIXED
        self.longest: dict[int, float] = {}
        self.training: object | None = None
        self.probe: GradientProbe | None = None
        self.coupling: CouplingTrial | None = None
        self.mixing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._owners: dict[int, object] = {}
        self._positions: dict[tuple[int, object], object] = {}
        self._flags: dict[int, tf.Variable] = {}
        self._sums: set[int] = set()
        self._seen: dict[int, DoubledBatch] = {}

    @contextlib.contextmanager
    def of(self, training: object) -> Iterator[None]:
        """Within the block, gradients are of `training`."""
        outer = self.training
        self.training = training
        try:
            yield
        finally:
            self.training = outer

    def owner(self, variable: object) -> object:
        """Return the owner of the gradients of several variables, of which `variable` is the first."""
        self._owners[id(variable)] = variable
        return variable if self.training is None else self.position(self.training, id(variable))

    @property
    def goes_on(self) -> bool:
        """Whether the step at hand is one of a loop's trial."""
        return self.active or self.coupling is not None

    @property
    def sums(self) -> bool:
        """Whether anything has been found to be a sum over rows."""
        return bool(self._sums)

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

    def observe(self, owner: object, label: str, doubled: Sequence[Any], whole: Sequence[Any]) -> None:
        """Compare this rank's numbers of the doubled batch with rank 0's of the whole one; in the trial's step only."""
        if self.active:
            self._owners[id(owner)] = owner
            self._seen[id(owner)] = DoubledBatch.of(label, doubled, whole)

    def conclude(self, gather: Callable[[object], list[Any]]) -> bool:
        """End the step of the trial; `gather` collects a value from all ranks. All ranks together.

        Tell whether every gradient is a mean or a sum over rows.
        """
        owners = list(self._seen)
        comparisons: list[DoubledBatch] = gather(list(self._seen.values()))[-1]
        self.active = False
        self._seen = {}
        sums = [comparison.is_sum() for comparison in comparisons]
        self.found_sum = any(sums)
        for owner, summed in zip(owners, sums, strict=True):
            self.note(self._owners[owner], bool(summed))
        return None not in sums

    def note(self, owner: object, summed: bool) -> None:
        """Note whether the numbers of `owner` are sums over rows."""
        self._owners[id(owner)] = owner
        (self._sums.add if summed else self._sums.discard)(id(owner))
        if id(owner) in self._flags:
            self._flags[id(owner)].assign(summed)


def _valued_as(part: Any, whole: Any) -> Any:
    """Return the gradient of a `part` of the batch, as a function of it, with the value of the `whole` batch's."""
    return part + tf.stop_gradient(whole - part) if isinstance(part, tf.Tensor) else part


def _numbers(value: Any) -> Any:
    return np.float64(tf.convert_to_tensor(value).numpy()).ravel()
