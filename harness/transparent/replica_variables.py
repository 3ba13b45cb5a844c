"""The variables of a script: they start equal on all ranks, and are shown to be equal at the end."""

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.base.errors import RunError, SharedError
from harness.comm.world import World
from harness.schema.sync_policies import SyncPolicy
from harness.transparent.batch_rows import Rows
from harness.transparent.collectives import Collectives
from harness.transparent.witness import NoWitness

_NUDGE = 64  # roundings: one of them moves too few units across a bound, as dividing a batch does
_MOST_UNTRAINED = 256  # the last of them are compared
_MOST_TRAININGS = 4  # the last sets of trained variables are compared: a script may train many models


class ReplicaVariables:
    """The variables that must be equal on all ranks.

    There are three kinds: variables that something trains (`remember`), variables of layers and generators that no
    optimizer changes (`add_untrained`), and variables that the script has made itself (`note_variable`).
    """

    def __init__(
        self, world: World, rows: Rows, collectives: Collectives, witness: NoWitness, policy: SyncPolicy
    ) -> None:
        self.world = world
        self._rows = rows
        self._collectives = collectives
        self._witness = witness
        self._policy = policy
        self._trained: deque[list[Any]] = deque(maxlen=_MOST_TRAININGS)
        self._untrained: deque[Any] = deque(maxlen=_MOST_UNTRAINED)
        self.seeds: deque[Any] = deque(maxlen=_MOST_UNTRAINED)  # the states of Keras's seed generators
        self._of_script: dict[int, weakref.ref[Any]] = {}  # by id
        self._of_rows: set[int] = set()  # ids of those that hold a batch's rows

    def start_equal(self, variables: Sequence[Any], label: str) -> None:
        """Give `variables` rank 0's values on all ranks, and in the witness."""
        with tf.init_scope():
            values = [np.array(variable.numpy(), order="C") for variable in variables]
            for value in values:
                self._collectives.broadcast(value, label)
            for variable, value in zip(variables, self._witness.share(values), strict=True):
                if self._witness.nudges and value.dtype == np.float32:
                    value *= 1 + _NUDGE * np.finfo(np.float32).eps * np.resize((1, -1, -1, 1, 1), value.shape)
                if self.world.rank or self._witness.is_witness:
                    variable.assign(value)

    def equalise(self, label: str) -> None:
        """Give all variables that a step may have assigned rank 0's values on all ranks; metrics are left out."""
        variables = [*self.trained, *self.untrained, *self.of_script]
        for variable in {id(variable): variable for variable in variables}.values():
            if not isinstance(variable, (tf.Variable, keras.Variable)) or variable.dtype == "string":
                continue  # of a session
            value = np.array(variable.numpy(), order="C")
            self._collectives.broadcast(value, label)
            if self.world.rank:
                variable.assign(value)

    @property
    def of_script(self) -> list[Any]:
        """The variables that the script has made itself and that are alive."""
        variables = [reference() for reference in self._of_script.values()]
        return [variable for variable in variables if variable is not None]

    def note_variable(self, variable: Any, *, of_rows: bool) -> None:
        """Note a variable that the script has made itself, and whether it holds a batch's rows."""
        self._of_script[id(variable)] = weakref.ref(variable)
        if of_rows:
            self._of_rows.add(id(variable))
        else:
            self._of_rows.discard(id(variable))

    def is_of_rows(self, variable: Any) -> bool:
        """Tell whether a variable that the script has made holds a batch's rows."""
        reference = self._of_script.get(id(variable))
        return reference is not None and reference() is variable and id(variable) in self._of_rows

    def remember(self, variables: Sequence[Any]) -> None:
        """Remember `variables`, which are trained, for the comparison of the replicas."""
        remembered = {id(variable) for variable in self.trained}
        fresh = [variable for variable in variables if id(variable) not in remembered]
        if fresh:
            self._trained.append(fresh)

    def forget(self) -> None:
        """Compare nothing that has been remembered so far."""
        self._trained.clear()
        self._untrained.clear()

    def add_untrained(self, variable: Any) -> None:
        """Remember a variable of a layer that no optimizer changes, such as statistics of rows."""
        self._untrained.append(variable)

    @property
    def untrained(self) -> list[Any]:
        """The variables that no optimizer changes, as far as they are numbers and have values."""
        return [variable for variable in self._untrained if variable.dtype != "string" and initialised([variable])]

    def average(self, variables: Sequence[Any]) -> None:
        """Average floating-point `variables` where the sync policy lets the ranks differ between two averages."""
        if self._policy.shares_gradients:
            return
        floats = [variable for variable in variables if tf.as_dtype(variable.dtype).is_floating]
        with self._rows.batch_of(None):
            means = self._collectives.mean([tf.convert_to_tensor(variable) for variable in floats], "weights")
        for variable, mean in zip(floats, means, strict=True):
            variable.assign(mean)

    def verify(self) -> str | None:
        """Return the hash that the remembered variables have on all ranks; None when there are none.

        Raises:
            SharedError: a RunError on every rank, naming the first variable that differs.
        """
        from harness.comm.replicas import hash_weights, verify_replicas

        variables = self.trained
        trained = {id(variable) for variable in variables}
        if variables:
            untrained = [variable for variable in self._untrained if id(variable) not in trained]
            variables += [variable for variable in untrained if initialised([variable])]
        self.average(variables)
        hashes = self._collectives.gather((len(variables), hash_weights(variables)), "comparison of weights")
        if len({count for count, _ in hashes}) > 1:
            counts = ", ".join(f"rank {rank} {count}" for rank, (count, _) in enumerate(hashes))
            raise SharedError(RunError(f"the ranks trained different numbers of variables: {counts}"))
        if not variables:
            return None
        if len(set(hashes)) == 1:
            return str(hashes[0][1])
        return verify_replicas(self.world, variables)

    @property
    def trained(self) -> list[Any]:
        """The variables that are trained, as far as they are remembered."""
        return [variable for variables in self._trained for variable in variables]


def initialised(variables: Sequence[Any]) -> bool:
    """Tell whether all `variables` (Keras's or TensorFlow's) have values; False inside a TensorFlow-1 graph."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return False
        handles = [
            variable.handle if isinstance(variable, tf.Variable) else variable.value.handle for variable in variables
        ]
        return all(bool(tf.raw_ops.VarIsInitializedOp(resource=handle)) for handle in handles)
