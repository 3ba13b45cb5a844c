"""Sync policies: what is averaged over the ranks, and when. A new one is one class in `POLICIES`, or a user's own.

Used in graphs, eagerly and by predictions: values are handed to the mean that is given, whatever they are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.schema.option import is_own_code

if TYPE_CHECKING:
    import numpy.typing as npt

Mean = Callable[[Sequence[Any], str], list[Any]]
"""Takes values (tensors in a graph) and what they are called; returns their means over the ranks, weighted by rows."""

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncPolicy:
    """How the ranks stay in step: a user's own is a subclass that overrides what it does otherwise.

    `form` is how users write it, with what it means; of the counts after its name `counts` are the fields.
    `shares_gradients`: every step's gradients are means over the global batch,
    so that the replicas are equal after every step. `period` is the number of steps after which `weights` is due,
    counted from the start of every epoch, at whose end it is due too; None for at the end of an epoch only, 0 for
    never. `for_scripts`: an unmodified script can be trained by it.
    """

    form: ClassVar[str] = "package.module:Class"
    counts: ClassVar[tuple[str, ...]] = ()
    shares_gradients: ClassVar[bool] = False
    for_scripts: ClassVar[bool] = True
    period: int | None = 0

    @classmethod
    def name(cls) -> str:
        """Return what stands before the counts of its form: ``weights``."""
        return cls.form.partition(":")[0]

    @classmethod
    def parse(cls, text: str) -> "SyncPolicy | None":
        """Return the policy that `text` names, None where it is not of this class's form.

        Counts are 1 or more; a period may be an ``epoch``.
        """
        if not cls.counts:
            return cls() if text == cls.form else None
        name, *parts = text.split(":")
        fit = name == cls.name() and len(parts) == len(cls.counts)
        values: dict[str, Any] = {}
        for field, part in zip(cls.counts, parts, strict=False):
            number = part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0
            fit = fit and (number or (field == "period" and part == "epoch"))
            values[field] = int(part) if number else None
        return cls(**values) if fit else None

    @property
    def synchronises(self) -> bool:
        """Whether the ranks end with equal weights."""
        return self.shares_gradients or self.period != 0

    def state(self, weights: Sequence["npt.NDArray[Any]"]) -> "list[npt.NDArray[Any]]":
        """Return the first values of what a rank keeps beside the `weights`, given theirs; nothing by default.

        Variables of these values are handed to `gradients` and `weights`, which assign what comes next, and are in
        checkpoints.
        """
        return []

    def gradients(self, gradients: Sequence[Any], mean: Mean, state: Sequence[Any] = ()) -> list[Any]:
        """Return the gradients to apply on this rank; `state` is given where there is any."""
        return list(gradients)

    def weights(self, weights: Sequence[Any], mean: Mean, state: Sequence[Any] = ()) -> list[Any]:
        """Return the weights to go on with, at the end of a period; `state` is given where there is any."""
        return list(weights)

    def sums(self, shapes: Sequence[Shape]) -> list[list[int]]:
        """Return how many values each tensor has of each sum over the ranks that one synchronisation makes.

        `shapes` are the weights'. For predictions.
        """
        return [[math.prod(shape) for shape in shapes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSync(SyncPolicy):
    """Average nothing: the ranks train side by side and drift apart, which measures the machine's own limit."""

    form: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients(SyncPolicy):
    """Average the gradients of every step."""

    form: ClassVar[str] = "gradients"
    shares_gradients: ClassVar[bool] = True

    def gradients(self, gradients: Sequence[Any], mean: Mean, state: Sequence[Any] = ()) -> list[Any]:
        """Return their means."""
        return mean(gradients, "gradients")


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights(SyncPolicy):
    """Train locally and average the weights every `period` steps (paper A).

    Optimizer state (momentum, accumulators) stays local, as in the papers' scripts.
    """

    form: ClassVar[str] = "weights:K (every K steps) or weights:epoch"
    counts: ClassVar[tuple[str, ...]] = ("period",)
    period: int | None = None

    def weights(self, weights: Sequence[Any], mean: Mean, state: Sequence[Any] = ()) -> list[Any]:
        """Return their means."""
        return mean(weights, "weights")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiLoCo(SyncPolicy):
    """Train locally for `period` steps and take the mean change of the weights for a gradient of an outer optimizer.

    Douillard et al. 2023 (arXiv 2311.08105), algorithm 1: with x the weights after the last outer step and x_i those of
    rank i, D = x - mean(x_i); by Nesterov's momentum, v = 0.9 v + D, x = x - 0.7 (D + 0.9 v). The rates are those of
    its experiments. Optimizer state stays local. State: x, then v.
    """

    form: ClassVar[str] = "diloco:H (outer steps every H steps)"
    counts: ClassVar[tuple[str, ...]] = ("period",)
    for_scripts: ClassVar[bool] = False
    rate: ClassVar[float] = 0.7
    momentum: ClassVar[float] = 0.9

    def state(self, weights: Sequence["npt.NDArray[Any]"]) -> "list[npt.NDArray[Any]]":
        """Return the weights and velocities of zero."""
        import numpy as np  # here, as it starts threads, and a rank's own file tree needs a process of one

        return [*weights, *map(np.zeros_like, weights)]

    def weights(self, weights: Sequence[Any], mean: Mean, state: Sequence[Any] = ()) -> list[Any]:
        """Make an outer step and return the weights after it."""
        stepped = []
        middles = mean(weights, "weights")
        for outer, velocity, middle in zip(state[: len(weights)], state[len(weights) :], middles, strict=True):
            change = outer - middle
            speed = self.momentum * velocity + change
            after = outer - self.rate * (change + self.momentum * speed)
            velocity.assign(speed)
            outer.assign(after)
            stepped.append(after)
        return stepped


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerSGD(SyncPolicy):
    """Average the gradients of every step in a factorisation of low `rank`; what it leaves out is in the next step's.

    Vogels, Karimireddy and Jaggi 2019 (arXiv 1905.13727), algorithms 1 and 2: of a weight's gradient G (all axes but
    the last are rows) and the rank's error E, M = G + E; P = mean(M Q), made orthogonal; R = M' P; Q = mean(R). All
    ranks apply P Q', each keeps E = M - P R', and the next step begins with Q (warm start). What would be no smaller,
    such as vectors, is averaged whole. State: the errors, then Q, of the weights that are factored, in order.
    """

    form: ClassVar[str] = "powersgd:R (gradients of rank R)"
    counts: ClassVar[tuple[str, ...]] = ("rank",)
    shares_gradients: ClassVar[bool] = True
    for_scripts: ClassVar[bool] = False
    rank: int

    def factored(self, shape: Sequence[int]) -> tuple[int, int] | None:
        """Return rows and columns of the matrix that a weight of `shape` is, None where it is summed whole."""
        columns = shape[-1] if len(shape) else 1
        rows = math.prod(shape[:-1])
        return (rows, columns) if self.rank * (rows + columns) < rows * columns else None

    def state(self, weights: Sequence["npt.NDArray[Any]"]) -> "list[npt.NDArray[Any]]":
        """Return errors of zero and normally distributed Q, the same on every rank."""
        import numpy as np

        random = np.random.default_rng(0)
        matrices = [(weight.dtype, sides) for weight in weights if (sides := self.factored(weight.shape))]
        errors = [np.zeros(sides, dtype) for dtype, sides in matrices]
        factors = (random.normal(size=(sides[1], self.rank)).astype(dtype) for dtype, sides in matrices)
        return [*errors, *factors]

    def gradients(self, gradients: Sequence[Any], mean: Mean, state: Sequence[Any] = ()) -> list[Any]:
        """Return the ranks' mean gradients as far as they are of the rank, for tensors of TensorFlow."""
        import tensorflow as tf  # predictions do without

        places = [place for place, gradient in enumerate(gradients) if self.factored(gradient.shape)]
        unfactored = [place for place in range(len(gradients)) if place not in places]
        errors = state[: len(places)]
        factors = state[len(places) :]
        matrices = [
            tf.reshape(gradients[place], error.shape) + error for place, error in zip(places, errors, strict=True)
        ]
        products = [tf.matmul(matrix, factor) for matrix, factor in zip(matrices, factors, strict=True)]
        means = mean([*products, *(gradients[place] for place in unfactored)], "gradients and left factors")
        averaged = dict(zip(unfactored, means[len(places) :], strict=True))
        left = [tf.linalg.qr(product).q for product in means[: len(places)]]
        right = [tf.matmul(matrix, basis, transpose_a=True) for matrix, basis in zip(matrices, left, strict=True)]
        middles = mean(right, "right factors") if places else []
        for number, place in enumerate(places):
            errors[number].assign(matrices[number] - tf.matmul(left[number], right[number], transpose_b=True))
            factors[number].assign(middles[number])
            product = tf.matmul(left[number], middles[number], transpose_b=True)
            averaged[place] = tf.reshape(product, gradients[place].shape)
        return [averaged[place] for place in range(len(gradients))]

    def sums(self, shapes: Sequence[Shape]) -> list[list[int]]:
        """Return the values of the left factors and of what is summed whole, and of the right factors."""
        sides = [self.factored(shape) for shape in shapes]
        both = list(zip(shapes, sides, strict=True))
        left = [side[0] * self.rank if side else math.prod(shape) for shape, side in both]
        right = [side[1] * self.rank for side in sides if side]
        return [left, right] if right else [left]


POLICIES: tuple[type[SyncPolicy], ...] = (Gradients, NoSync, Weights, DiLoCo, PowerSGD)
FORMS = ", ".join(policy.form for policy in POLICIES)
"""All forms, for help and messages."""


def is_own_policy(text: str) -> bool:
    """Return whether a SYNC's `text` names a user's own code and no policy of the harness; nothing is imported."""
    names = {policy.name() for policy in POLICIES}
    return is_own_code(text) and text.partition(":")[0] not in names


def check_sync(text: str) -> None:
    """Check the form of a policy, without importing a user's own; raise a UserError if it is of none."""
    if not is_own_policy(text) and not any(policy.parse(text) for policy in POLICIES):
        raise UserError(
            f"{setting('sync', text)} is not a sync policy: write {FORMS}, or {SyncPolicy.form} for one of your own"
        )


def known_policy(text: str) -> SyncPolicy | None:
    """Return the policy of the harness that `text` names, None where it names a user's own code: nothing is imported.

    Raises:
        UserError: it has no known form.
    """
    check_sync(text)
    return next(filter(None, (policy.parse(text) for policy in POLICIES)), None)
