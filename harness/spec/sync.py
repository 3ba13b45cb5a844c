"""The sync policy as users write it: ``gradients``, ``weights:K``, ``weights:epoch`` or ``none``."""

from dataclasses import dataclass

from harness.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncSpec:
    """What is averaged over the ranks (``gradients`` or ``weights``) and every how many steps.

    `every` is 1 for gradients; for weights a step count, or None for once per epoch. ``none`` averages
    nothing: the ranks train side by side and drift apart. It measures the machine's own limit.
    """

    what: str
    every: int | None = 1

    @classmethod
    def parse(cls, text: str) -> "SyncSpec":
        """Parse the users' form.

        Raises:
            UserError: the text is none of the three forms.
        """
        if text in ("gradients", "none"):
            return cls(what=text)
        what, _, period = text.partition(":")
        if what == "weights" and period == "epoch":
            return cls(what="weights", every=None)
        if what == "weights" and period.isascii() and period.isdigit() and int(period) >= 1:
            return cls(what="weights", every=int(period))
        raise UserError(f"SYNC={text} is no sync policy: write gradients, weights:K (every K steps) or weights:epoch")

    def __str__(self) -> str:
        if self.what != "weights":
            return self.what
        return f"weights:{'epoch' if self.every is None else self.every}"
