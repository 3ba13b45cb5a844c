"""Sync policies: what is averaged over the ranks, and when. A new one is one class in `POLICIES`, or a user's own.

Used in graphs, eagerly and by predictions: values are handed to the mean that is given, whatever they are.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.base.errors import UserError
from harness.schema.option import import_own, is_own

Mean = Callable[[Sequence[Any], str], list[Any]]
"""Takes values (tensors in a graph) and what they are called; returns their means over the ranks, weighted by rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncPolicy:
    """How the ranks stay in step: a user's own is a subclass that overrides what it does otherwise.

    `form` is how users write it, with what it means. `shares_gradients`: every step's gradients are means over the
    global batch, so that the replicas are equal after every step. `period` is the number of steps after which
    `weights` is due, counted from the start of every epoch, at whose end it is due too; None for at the end of an epoch
    only, 0 for never.
    """

    form: ClassVar[str] = "package.module:Class"
    shares_gradients: ClassVar[bool] = False
    period: int | None = 0

    @classmethod
    def parse(cls, text: str) -> "SyncPolicy | None":
        """Return the policy that `text` names, None where it is not of this class's form."""
        return cls() if text == cls.form else None

    @property
    def synchronises(self) -> bool:
        """Whether the ranks end with equal weights."""
        return self.shares_gradients or self.period != 0

    def gradients(self, gradients: Sequence[Any], mean: Mean) -> list[Any]:
        """Return the gradients to apply on this rank."""
        return list(gradients)

    def weights(self, weights: Sequence[Any], mean: Mean) -> list[Any]:
        """Return the weights to go on with, at the end of a period."""
        return list(weights)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSync(SyncPolicy):
    """Average nothing: the ranks train side by side and drift apart, which measures the machine's own limit."""

    form: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients(SyncPolicy):
    """Average the gradients of every step."""

    form: ClassVar[str] = "gradients"
    shares_gradients: ClassVar[bool] = True

    def gradients(self, gradients: Sequence[Any], mean: Mean) -> list[Any]:
        """Return their means."""
        return mean(gradients, "gradients")


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights(SyncPolicy):
    """Train locally and average the weights every `period` steps (paper A).

    Optimizer state (momentum, accumulators) stays local, as in the papers' scripts.
    """

    form: ClassVar[str] = "weights:K (every K steps) or weights:epoch"
    period: int | None = None

    @classmethod
    def parse(cls, text: str) -> "SyncPolicy | None":
        """Return the policy of ``weights:K`` or ``weights:epoch``."""
        what, _, period = text.partition(":")
        if what != "weights" or not (period == "epoch" or (period.isascii() and period.isdigit() and int(period))):
            return None
        return cls(period=None if period == "epoch" else int(period))

    def weights(self, weights: Sequence[Any], mean: Mean) -> list[Any]:
        """Return their means."""
        return mean(weights, "weights")


POLICIES: tuple[type[SyncPolicy], ...] = (Gradients, NoSync, Weights)
FORMS = ", ".join(policy.form for policy in POLICIES)
"""All forms, for help and messages."""


def check_sync(text: str) -> None:
    """Check the form of a policy, without importing a user's own.

    Raises:
        UserError: it is of none.
    """
    if not is_own(text) and not any(policy.parse(text) for policy in POLICIES):
        raise UserError(f"SYNC={text} is not a sync policy: write {FORMS}, or {SyncPolicy.form} for one of your own")


@functools.cache
def find_policy(text: str) -> SyncPolicy:
    """Return the policy that `text` names.

    Raises:
        UserError: it is of no known form, or a user's own cannot be imported.
    """
    check_sync(text)
    return next(filter(None, (policy.parse(text) for policy in POLICIES)), None) or _import(text)


def _import(text: str) -> SyncPolicy:
    policy = import_own("SYNC", text)
    if not isinstance(policy, type) or not issubclass(policy, SyncPolicy):
        raise UserError(f"SYNC={text} does not name a sync policy: it must be a subclass of {__name__}.SyncPolicy")
    return policy()
