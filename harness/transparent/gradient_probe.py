"""What the ranks find out of a script's gradients and numbers: means over rows, sums, or neither.

A step that a script has compiled, or Keras for it, is made for observation only, of a batch and of its parts: see
`step_probe`. In the trial of a loop that takes its gradients eagerly rank 0 makes the step of the whole batch, which
counts; the others the same step of the batch with every row twice, which does not. A mean over rows is the same for
both, a sum twice as large.
"""

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from harness.transparent.batch_coupling import Shadow
from harness.transparent.rows import own_variable

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
    """What a step does that is made for observation only, each with its owner (see `Trial`).

    That is the gradients its tapes yield, the numbers it reports, and `states`: the floating-point variables that it
    has changed, by their place among those that are put back. Losses that are known to be of all ranks' rows are left
    out, and so are the `results` of metrics, with their variables (`counted`). `taped`: the variables, by id, whose
    gradients tapes have yielded. `whole`: the same of the whole batch, already made.
    """

    whole: "GradientProbe | None" = None
    gradients: list[tuple[object, Sequence[Any]]] = field(default_factory=list)
    numbers: dict[int, tuple[object, Any]] = field(default_factory=dict)
    states: "dict[int, np.ndarray[Any, Any]]" = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)
    counted: set[int] = field(default_factory=set)
    taped: set[int] = field(default_factory=set)

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
        return [each for holder, gradients in self.gradients if holder is owner for each in gradients]

    def is_result(self, value: Any) -> bool:
        """Tell whether `value` is the result of a metric, which is of all ranks' rows."""
        return any(value is result for result in self.results)


class Trial:
    """What is known of the numbers of every `owner`: a variable, a metric, a place in what a function returns.

    `training` is what the gradients at hand are of: a compiled step, of the script or of Keras. A number may be a sum
    in one training and a mean in the next, also of the same variables.
    """

    def __init__(self) -> None:
        self.active = self.found_sum = False
        self.training: object | None = None
        self.probe: GradientProbe | None = None
        self.shadow: Shadow | None = None
        self.mixing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._owners: dict[int, object] = {}
        self._positions: dict[tuple[int, object], object] = {}
        self._flags: dict[int, tf.Variable] = {}
        self._sums: set[int] = set()
        self._seen: dict[int, DoubledBatch] = {}

    @contextlib.contextmanager
    def of(self, training: object) -> Iterator[None]:
        """Within the block, gradients are of `training`."""
        outer, self.training = self.training, training
        try:
            yield
        finally:
            self.training = outer

    def owner(self, variable: object) -> object:
        """Return what stands for the gradients of several variables, of which `variable` is the first."""
        self._owners[id(variable)] = variable
        return variable if self.training is None else self.position(self.training, id(variable))

    @property
    def goes_on(self) -> bool:
        """Whether the step at hand is one of a loop's trial."""
        return self.active or self.shadow is not None

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
        self.found_sum = any(seen.is_sum() for seen in found[-1])
        sums = [seen.is_sum() for seen in found[-1]]
        for owner, summed in zip(owners, sums, strict=True):
            self.note(self._owners[owner], bool(summed))
        return None not in sums

    def note(self, owner: object, summed: bool) -> None:
        """Take note whether the numbers of `owner` are sums over rows."""
        self._owners[id(owner)] = owner
        (self._sums.add if summed else self._sums.discard)(id(owner))
        if id(owner) in self._flags:
            self._flags[id(owner)].assign(summed)


def _numbers(value: Any) -> Any:
    return np.float64(tf.convert_to_tensor(value).numpy()).ravel()
