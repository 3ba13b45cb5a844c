"""How many steps an execution of fused steps makes: about 80 ms of them, and as many on every rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

TARGET_S = 0.08  # of an execution: between 20 and 100 ms where steps are that short
_LONGEST_S = 0.1
_MOST_EXECUTIONS = 16  # that follow one agreement


@dataclass(kw_only=True)
class StepPace:
    """How many steps an execution makes. `step_s`: seconds of a step, the last time that any were timed."""

    step_s: float = TARGET_S

    def timed(self, steps: int, seconds: float) -> None:
        """Take note of what some steps took."""
        self.step_s = max(seconds / steps, 1e-6)

    @property
    def steps(self) -> int:
        """The steps that make about `TARGET_S`, and no more than `_LONGEST_S` where there are several."""
        return max(1, min(round(TARGET_S / self.step_s), int(_LONGEST_S / self.step_s)))


@dataclass(kw_only=True)
class AgreedSteps:
    """The steps of executions, which are rank 0's: by its own clock each rank would choose another number.

    One rank would then leave the loop while another waits in it. `agree` returns rank 0's value on all ranks. They
    agree before the first execution, then after 1, 2, 4 ... 16 of them, then after every 16th. Where rank 0 saves the
    model within epochs, they also agree after that, and at the begin of an epoch.
    """

    agree: Callable[[Any], Any]
    _steps: int = 1
    _until_save: int | None = None  # steps from now
    _executions: int = 0  # to come before the ranks agree again
    _following: int = 1  # executions after the next agreement

    def next_count(self, pace: StepPace, callbacks: Sequence[Any], *, grain: int, begins: bool) -> int:
        """Return the steps of the next execution, a multiple of `grain`; `begins`: it is the first of an epoch."""
        saves = self._until_save is not None
        if self._executions == 0 or (saves and (begins or self._until_save == 0)):
            self._ask(pace, callbacks, grain)
        self._executions -= 1
        if self._until_save is None:
            return self._steps
        return min(self._steps, self._until_save)

    def made(self, steps: int) -> None:
        """Take note of an execution of so many steps."""
        if self._until_save is not None:
            self._until_save = max(0, self._until_save - steps)

    def _ask(self, pace: StepPace, callbacks: Sequence[Any], grain: int) -> None:
        steps = max(1, pace.steps // grain) * grain
        until_save = steps_to_save(callbacks)
        if until_save is not None:
            until_save = -(-until_save // grain) * grain
        self._steps, self._until_save = self.agree((steps, until_save))
        self._executions = self._following
        self._following = min(2 * self._following, _MOST_EXECUTIONS)


def steps_to_save(callbacks: Sequence[Any]) -> int | None:
    """Return how many steps there are until one of `callbacks` saves the model within an epoch; None if none does."""
    saving = [callback for callback in callbacks if isinstance(getattr(callback, "save_freq", None), int)]
    counts = [callback.save_freq - callback._batches_seen_since_last_saving for callback in saving]
    return max(1, min(counts)) if counts else None
