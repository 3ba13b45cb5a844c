"""LossRecord: a rank that a launch has outlived. Stretch: what it trained between two losses."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class LossRecord:
    """A rank that was lost and that the launch outlived. `rank` is the number that it had then, None of a spare.

    It was `noticed` at this aware time, in the words of `how`, after `step` steps of `epoch` (from 0); `redone` steps
    were begun again. `recovery_s` seconds later `ranks` ranks went on; `anew`, where spares were all that was left.
    """

    rank: int | None
    host: str
    pid: int
    noticed: datetime
    how: str
    epoch: int
    step: int
    redone: int
    recovery_s: float
    ranks: int
    anew: bool = False

    def __str__(self) -> str:
        name = "a spare" if self.rank is None else f"rank {self.rank}"
        made = f"{self.step} steps of epoch {self.epoch + 1}" if self.step or not self.epoch else f"epoch {self.epoch}"
        went_on = "began anew, as none that knew the weights was left," if self.anew else "went on"
        return (
            f"{name} was lost{'' if self.anew else f' after {made}'} (process {self.pid} on {self.host}): "
            f"{self.ranks} ranks {went_on} after {self.recovery_s:.2f} s"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """What `ranks` ranks trained from one loss to the next: `steps` steps, behind the `first` of the launch.

    `started` and `ended` are aware; the steps took `training_s` seconds of that, evaluation the most of the rest.
    """

    ranks: int
    first: int
    steps: int
    started: datetime
    ended: datetime
    training_s: float
