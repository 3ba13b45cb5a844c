"""When the epochs of a script's `fit` began and ended, and what of it went into synchronisation."""

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt

from harness.base.cpu_contention import CpuUsage
from harness.transparent.keras_data import rows_per_batch
from harness.transparent.patch import replace
from harness.transparent.runtime import Runtime

if TYPE_CHECKING:
    from harness.comm.reduction import Reduction


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptEpoch:
    """One epoch on one rank. Times in seconds; `calls` float64 [n, 2]: entry and exit of every synchronisation call,
    in seconds since the epoch's `start` on this rank's clock. `logs` as Keras's callbacks get them at its end."""

    steps: int
    start: float
    seconds: float
    evaluate_s: float
    calls: npt.NDArray[np.float64]
    logs: dict[str, float]
    begin: CpuUsage
    end: CpuUsage


class EpochClock(keras.callbacks.Callback):
    """Comes before the script's own callbacks, so that what these do between epochs is not counted."""

    async_safe = True  # Keras need not wait for the step to count it

    def __init__(self, reductions: Callable[[], "tuple[Reduction, ...]"]) -> None:
        super().__init__()
        self.epochs: list[ScriptEpoch] = []
        self._reductions = reductions
        self._steps = 0
        self._begin = self._evaluation = 0.0
        self._calls: npt.NDArray[np.float64] = np.empty((0, 2))
        self._seconds: float | None = None
        self._usage = CpuUsage.now()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the epoch's clock."""
        self._take()
        self._usage = CpuUsage.now()
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
            ScriptEpoch(
                steps=self._steps,
                start=self._begin,
                seconds=self._seconds or 0.0,
                evaluate_s=now - self._evaluation if self._evaluation else 0.0,
                calls=self._calls - self._begin,
                logs={name: float(value) for name, value in (logs or {}).items()},
                begin=self._usage,
                end=CpuUsage.now(),
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


@dataclass(kw_only=True)
class FitObservations:
    """What the script's calls of `fit` have been seen to do; the last one's rows, batch and sizes."""

    epochs: list[ScriptEpoch] = field(default_factory=list)
    rows: int = 0
    batch: int = 0
    sizes: tuple[int, int] = (0, 0)
    awaiting: bool = False

    def install(self, runtime: Runtime) -> None:
        """Replace `fit` and the maker of data adapters, below whatever divides the data over the ranks."""
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
        from keras.src.trainers import data_adapters

        replace(TensorFlowTrainer, "fit", ("self", "x", "y"), lambda original: self._fit(original, runtime))
        replace(data_adapters, "get_data_adapter", ("x", "y"), self._adapter)

    def _fit(self, original: Callable[..., Any], runtime: Runtime) -> Callable[..., Any]:
        import keras

        def fit(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(original).bind(*args, **kwargs).arguments
            clock = EpochClock(lambda: runtime.collectives.reductions)
            known = given.get("callbacks")
            given["callbacks"] = [clock, *(keras.tree.flatten(known) if known else [])]
            self.awaiting = True
            history = original(**given)
            self.epochs += clock.epochs
            model = given["self"]
            self.sizes = (
                sum(math.prod(variable.shape) for variable in model.trainable_variables),
                sum(variable.numpy().nbytes for variable in model.trainable_variables),
            )
            runtime.remember(model.weights)
            return history

        return fit

    def _adapter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_data_adapter(*args: Any, **kwargs: Any) -> Any:
            adapter = original(*args, **kwargs)
            if self.awaiting:  # the first that a fit asks for is of its training rows
                self.awaiting = False
                self.batch = rows_per_batch(adapter) or 0
                self.rows = getattr(adapter, "_num_samples", 0) or self.batch * (adapter.num_batches or 0)
            return adapter

        return get_data_adapter
