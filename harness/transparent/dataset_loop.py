"""A Python loop of a script over a data set, and what has been seen of it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class DatasetLoop:
    """A loop over `dataset`; `lines`: where in the script it is, innermost first.

    What has been found out about a loop belongs to what it trains:

    - `trains`: whether it trains at all.
    - `steps`: the compiled steps that it calls.
    - `owners`: by id, the variables whose gradients the loop takes itself, and the steps that only the trial of these
      gradients can judge. `takes_gradients`: whether there are any.
    - `generation`: the runtime's count of what the script has made that can be trained, when this was found out. After
      more has been made, the loop takes one batch whole and is observed again (`is_observed`).
    - `why_whole`: why its batches cannot be divided, as the loop has shown with a whole batch.
    - `why_untried`: why a trial of its gradients would show nothing.
    - `unprobed_place`: where in the script it has taken the gradient of something unknown, of a divided batch.

    The rest is of the current batch: `batch` is the batch of all ranks, None when it has asked for one after its last;
    `is_divided` whether it was divided, `part` this rank's part of it, or of the last batch that was divided.

    - `first_part_steps`: how many steps the script had made when its first divided batch was taken.
    - `had_trial`: whether some of its batches were of the trial.
    """

    dataset: Any
    lines: tuple[Any, ...]
    trains: bool = False
    is_observed: bool = True
    takes_gradients: bool = False
    generation: int = 0
    steps: set[Any] = field(default_factory=set)
    owners: set[int] = field(default_factory=set)
    why_whole: str = ""
    why_untried: str = ""
    unprobed_place: str = ""
    first_part_steps: int | None = None
    batch: Any = None
    is_divided: bool = False
    part: Any = None
    had_trial: bool = False

    @property
    def place(self) -> tuple[Any, ...]:
        """What identifies the trial of its gradients: its lines, and what they train."""
        return (*self.lines, *sorted(self.owners))

    def observe_again(self) -> None:
        """Have the next batch taken whole, to see what is trained with it."""
        self.trains = False
        self.takes_gradients = False
        self.is_observed = True
        self.steps = set()
        self.owners = set()
        self.first_part_steps = None
        self.part = None

    def take_over(self, earlier: "DatasetLoop") -> None:
        """Use what was found out about an `earlier` loop of the same lines over the same data set."""
        self.trains = True
        self.is_observed = False
        self.takes_gradients = earlier.takes_gradients
        self.steps = earlier.steps
        self.owners = earlier.owners
        self.why_whole = earlier.why_whole
