"""What callbacks decide, all ranks decide; what they write, rank 0 writes."""

from typing import Any

import keras
import numpy as np

from harness.transparent.preflight import check_steps
from harness.transparent.runtime import Runtime


class Agreement(keras.callbacks.Callback):
    """Comes after the script's own callbacks: the other ranks take over what rank 0's have decided.

    It has no method for batches: with one, Keras would read every step's losses back from the device.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    @classmethod
    def added(cls, callbacks: Any, runtime: Runtime, trainer: Any) -> Any:
        """Return `callbacks` as `fit` takes them with this one behind them."""
        own = isinstance(callbacks, keras.callbacks.CallbackList)
        known = list(callbacks.callbacks) if own else keras.tree.flatten(callbacks) if callbacks else []
        each = any(_sees_batches(callback) for callback in known)
        agreement = BatchAgreement(runtime) if each else cls(runtime)
        if own:
            agreement.set_model(trainer)
            callbacks.append(agreement)
            return callbacks
        return [*known, agreement]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compare the number of steps: a rank with fewer of them would leave the others waiting."""
        check_steps(self._runtime, self.params.get("steps"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the weights where that is due, agree to stop, take over the learning rate, compare weights."""
        self._runtime.average(self.model.weights)
        self._agree_to_stop()
        self._agree_on_rate()
        every = self._runtime.settings.verify
        if every and (epoch + 1) % every == 0:
            self._runtime.remember(self.model.weights)
            self._runtime.verify()

    def _agree_to_stop(self) -> None:
        stop = np.array([self.model.stop_training], dtype=np.int8)
        self._runtime.collectives.broadcast(stop, "stop_training")
        self.model.stop_training = bool(stop[0])

    def _agree_on_rate(self) -> None:
        optimizer = self.model.optimizer
        rate = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
        if isinstance(rate, keras.Variable):
            value = np.array(rate.numpy())
            self._runtime.collectives.broadcast(value, "learning rate")
            rate.assign(value)


class BatchAgreement(Agreement):
    """For scripts with callbacks of their own that see batches."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Stop together when a callback of the script's own stops in the middle of an epoch."""
        self._agree_to_stop()


_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def _sees_batches(callback: Any) -> bool:
    """Tell whether a callback of the script's own may stop in the middle of an epoch; Keras's own do so at its end."""
    if isinstance(callback, keras.callbacks.LambdaCallback):
        return True
    if type(callback).__module__.startswith("keras."):
        return False
    # The object's methods, not its class's: a script may set one on the object.
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(keras.callbacks.Callback, name)
        for name in _BATCH_HOOKS
    )
