"""Variables of all ranks made equal to one rank's."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from harness.horovod.operations import grouped_broadcast
from harness.horovod.process_sets import (
    ProcessSet,
    global_process_set,
)


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """Give `variables` rank `root_rank`'s values and return these."""
    values = grouped_broadcast(variables, root_rank, name or "variables", process_set)
    done = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    with tf.control_dependencies([] if tf.executing_eagerly() else [each for each in done if each is not None]):
        return [tf.identity(value) for value in values]


def broadcast_variables(
    variables: Any, root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Give `variables`, TensorFlow's or Keras's, rank `root_rank`'s values, in one exchange."""
    chosen = [variable for variable in variables if getattr(variable, "dtype", None) not in ("string", tf.string)]
    return tf.group(*broadcast_(chosen, root_rank, None, process_set)) if chosen else tf.no_op()


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that gives all variables of a TensorFlow-1 graph rank `root_rank`'s values.

    Raises:
        RuntimeError: there is no graph.
    """
    if tf.executing_eagerly():
        raise RuntimeError("hvd.broadcast_global_variables() does not support eager execution: use broadcast_variables")
    variables = tf.compat.v1.global_variables()
    values = grouped_broadcast(variables, root_rank, "global variables", global_process_set, unordered=True)
    return tf.group(*[variable.assign(value) for variable, value in zip(variables, values, strict=True)])


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all variables rank `root_rank`'s values once a TensorFlow-1 session has been made."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        self._root = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Build the operation."""
        self._operation = broadcast_global_variables(self._root)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self._operation)
