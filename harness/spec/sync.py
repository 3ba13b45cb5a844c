"""The sync policy as users write it: ``gradients``, ``weights:K`` or ``weights:epoch``."""

from dataclasses import dataclass

from harness.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncSpec:
    """What is averaged over the ranks (``gradients`` or ``weights``) and every how many steps.

    `every` is 1 for gradients; for weights a step count, or None for once per epoch.
    """

    what: str
    every: int | None = 1

    @classmethod
    def parse(cls, text: str) -> "SyncSpec":
        """Parse the users' form.

        Raises:
            UserError: the text is none of the three forms.
        """
        if text == "gradients":
            return cls(what="gradients")
        what, _, period = text.partition(":")
        if what == "weights" and period == "epoch":
            return cls(what="weights", every=None)
        if what == "weights" and period.isascii() and period.isdigit() and int(period) >= 1:
            return cls(what="weights", every=int(period))
        raise UserError(f"SYNC={text} is no sync policy: write gradients, weights:K (every K steps) or weights:epoch")

    def __str__(self) -> str:
        if self.what == "gradients":
            return "gradients"
        return f"weights:{'epoch' if self.every is None else self.every}"
