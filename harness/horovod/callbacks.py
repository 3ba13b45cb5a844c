"""Horovod's callbacks for Keras 3."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from harness.base.errors import UserError
from harness.horovod.not_offered import refuse_arguments
from harness.horovod.operations import Average, broadcast_variables, grouped_allreduce
from harness.horovod.ranks import rank, size


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """After the first batch, when all variables are there, gives model and optimizer rank `root_rank`'s values."""

    def __init__(self, root_rank: int, device: str = "", **others: Any) -> None:
        super().__init__()
        refuse_arguments("BroadcastGlobalVariablesCallback", others)
        self._root = root_rank
        self.broadcast_done = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        broadcast_variables([*self.model.variables, *getattr(self.model.optimizer, "variables", [])], self._root)
        self.broadcast_done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """At an epoch's end makes the ranks' mean of every number in its logs, for the callbacks that follow."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        names = sorted(logs or {})
        if names:
            means = grouped_allreduce(
                [tf.constant(float(logs[name]), tf.float64) for name in names],
                op=Average,
                name=f"metrics {', '.join(names)}",
            )
            logs.update({name: float(mean) for name, mean in zip(names, means, strict=True)})


class Momentum(float):
    """An optimizer's momentum whose value inside of compiled steps, `variable`, can be changed between them."""

    def __init__(self, value: float) -> None:
        self.variable = tf.Variable(value, trainable=False, dtype=tf.float32)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        """Return what TensorFlow takes it for."""
        return tf.cast(self.variable.read_value(), dtype or tf.float32)


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` * `multiplier`, a function of the epoch or a factor for every epoch.

    At the beginning of epochs, or with `staircase` False of batches, of an epoch that is then a fraction. Momentum is
    scaled by new over old rate for the batch after a change (Goyal et al. 2017, "Accurate, large minibatch SGD",
    section 3, "momentum correction").

    Raises:
        ValueError: there is no `initial_lr`.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.steps_per_epoch = steps_per_epoch
        self._corrects = momentum_correction
        self._epoch = 0
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the number of steps, and let the momentum change if there is one.

        Raises:
            ValueError: the number of steps is not known.
            UserError: the optimizer has a learning rate schedule of its own.
        """
        optimizer = self.model.optimizer
        if not isinstance(getattr(optimizer, "_learning_rate", None), keras.Variable):
            raise UserError(f"{type(self).__name__} needs an optimizer whose learning rate is a number, no schedule")
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError("Could not autodetect the number of steps per epoch: specify steps_per_epoch")
        momentum = getattr(optimizer, "momentum", 0.0)
        if self._corrects and momentum and not isinstance(momentum, Momentum):
            optimizer.momentum = Momentum(momentum)
            self.model.make_train_function(force=True)  # the momentum is a constant of a step that has been compiled

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._adjust(self._epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self._epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        momentum = getattr(self.model.optimizer, "momentum", 0.0)
        if isinstance(momentum, Momentum):
            momentum.variable.assign(float(momentum))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = float(optimizer.learning_rate)
        new = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        momentum = getattr(optimizer, "momentum", 0.0)
        if isinstance(momentum, Momentum) and self._corrects and old:
            momentum.variable.assign(float(momentum) * new / old)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr` / ranks to `initial_lr` over the first epochs, batch by batch."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            reached = epoch + 1 / (self.steps_per_epoch or 1)  # round numbers at the end of each epoch
            return (reached * (size() - 1) / warmup_epochs + 1) / size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self._verbose and rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")
