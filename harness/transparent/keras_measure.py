"""Measure a script's `fit` for its record: epochs, rows, parameters. Works alone and on many ranks."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.transparent.clock import Clock, EpochTimes
from harness.transparent.keras_data import rows_per_batch
from harness.transparent.patch import replace
from harness.transparent.runtime import Runtime


@dataclass(kw_only=True)
class Measured:
    """What the script's calls of `fit` have been seen to do; the last one's rows, batch and sizes."""

    epochs: list[EpochTimes] = field(default_factory=list)
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
            clock = Clock(lambda: runtime.collectives.reductions)
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
