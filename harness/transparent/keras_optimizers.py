"""Keras 3's optimizers: gradients are averaged on their way into `apply`."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from harness.base.errors import UserError
from harness.transparent.gradients import Synchroniser
from harness.transparent.patch import replace
from harness.transparent.preflight import check_optimizer
from harness.transparent.runtime import Runtime, initialised


def install(runtime: Runtime, synchroniser: Synchroniser) -> None:
    """Replace `apply` of the base class and of the loss scaler.

    Every Keras optimizer, `apply_gradients` and `fit` go through one of the two. The loss scaler looks for
    infinities before it calls the optimizer inside it: averaged before that, they are seen by all ranks or none.
    """
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
            grads = list(grads)
            if runtime.quiet or not grads:
                return original(optimizer, grads, trainable_variables)
            variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
            _refuse_loops(runtime)
            # Variables made in the first trace of a tf.function have no values yet: it is traced once more.
            if initialised(variables) and runtime.starts(optimizer):
                check_optimizer(runtime, optimizer, variables)
                runtime.start_equal([*variables, *(optimizer.variables if optimizer.built else [])], "initial weights")
                runtime.remember(variables)
            if not tf.executing_eagerly():
                runtime.traced += 1
            elif not runtime.in_trainer:
                runtime.stepped()
            averaged = synchroniser.gradients(grads, variables)
            with runtime.quietly():
                result = original(optimizer, averaged, None if trainable_variables is None else variables)
            synchroniser.after_step(optimizer, variables)
            return result

        return apply

    replace(BaseOptimizer, "apply", ("self", "grads", "trainable_variables"), make)
    replace(LossScaleOptimizer, "apply", ("self", "grads", "trainable_variables"), make)


def _refuse_loops(runtime: Runtime) -> None:
    if runtime.sync.period is None and not runtime.in_trainer:
        raise UserError("SYNC=weights:epoch is for Keras's fit, where epochs can be seen: use weights:K for a loop")
    if type(tf.compat.v1.get_default_graph()).__name__ == "WhileBodyFuncGraph":
        raise UserError(
            "the script trains in a loop inside a tf.function, whose batches cannot be divided over the ranks: "
            "put one step into the tf.function and call it in a Python loop"
        )
