"""When the epochs of a script's `fit` began and ended, and what of it went into synchronisation."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from harness.comm.reduction import Reduction
from harness.hostload import Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochTimes:
    """One epoch on one rank. Times in seconds; `calls` float64 [n, 2]: entry and exit of every synchronisation call,
    in seconds since the epoch's `start` on this rank's clock. `logs` as Keras's callbacks get them at its end."""

    steps: int
    start: float
    seconds: float
    evaluate_s: float
    calls: npt.NDArray[np.float64]
    logs: dict[str, float]
    begin: Usage
    end: Usage


class Clock(keras.callbacks.Callback):
    """Comes before the script's own callbacks, so that what these do between epochs is not counted."""

    async_safe = True  # Keras need not wait for the step to count it

    def __init__(self, reductions: Callable[[], tuple[Reduction, ...]]) -> None:
        super().__init__()
        self.epochs: list[EpochTimes] = []
        self._reductions = reductions
        self._steps = 0
        self._begin = self._evaluation = 0.0
        self._calls: npt.NDArray[np.float64] = np.empty((0, 2))
        self._seconds: float | None = None
        self._usage = Usage.now()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the epoch's clock."""
        self._take()
        self._usage = Usage.now()
        self._steps, self._seconds, self._evaluation = 0, None, 0.0
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the steps, which `steps_per_execution` bundles."""
        self._steps = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stop the epoch's clock: the validation at its end is timed apart."""
        self._stop()
        self._evaluation = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep the epoch."""
        now = time.perf_counter()
        self._stop()
        self.epochs.append(
            EpochTimes(
                steps=self._steps,
                start=self._begin,
                seconds=self._seconds or 0.0,
                evaluate_s=now - self._evaluation if self._evaluation else 0.0,
                calls=self._calls - self._begin,
                logs={name: float(value) for name, value in (logs or {}).items()},
                begin=self._usage,
                end=Usage.now(),
            )
        )
        self._take()

    def _stop(self) -> None:
        if self._seconds is None:
            self._seconds = time.perf_counter() - self._begin
            self._calls = self._take()

    def _take(self) -> npt.NDArray[np.float64]:
        calls = [reduction.take_calls() for reduction in self._reductions()]
        return np.concatenate([np.empty((0, 2)), *calls])
