"""Interval: how often a launch writes a checkpoint."""

import re
from dataclasses import dataclass

from harness.base.errors import UserError

_USUAL = "10m"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointInterval:
    """Between two checkpoints: `steps`, or `seconds`; with neither none is written.

    `asked` says that the user named it: then every stop is worth one, however young the launch.
    """

    steps: int | None = None
    seconds: float | None = None
    asked: bool = False

    @property
    def never(self) -> bool:
        """Whether no checkpoint is written."""
        return self.steps is None and self.seconds is None


def parse_interval(text: str | None) -> CheckpointInterval:
    """Return the interval of ``500`` (steps), ``10m`` (minutes) or ``none``; of None the usual one, 10 minutes.

    Raises:
        UserError: it is none of these.
    """
    asked = text is not None
    text = text or _USUAL
    if text == "none":
        return CheckpointInterval(asked=asked)
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(m?)", text, flags=re.ASCII)
    number = float(found[1]) if found else 0.0
    if not found or not number or (not found[2] and not number.is_integer()):
        raise UserError(f"CHECKPOINT={text} is no interval: write steps (500), minutes (10m) or none")
    return (
        CheckpointInterval(seconds=60 * number, asked=asked)
        if found[2]
        else CheckpointInterval(steps=int(number), asked=asked)
    )
