"""What ranks and the witness have in common: they look at the same gradients and numbers, in the same graphs."""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from harness.schema.record_notes import Note
from harness.transparent.patch import script_lines
from harness.transparent.witness.observation import Beginning, Observation, measures
from harness.transparent.witness.observed_state import LiveVariables, ObservedState
from harness.transparent.witness.written_outputs import WrittenOutputs

Observed = Observation | ObservedState | Beginning
STEPS = 20  # averaged gradients of each training that are compared by default
SCRIPT_END = "the script's end"
NUDGES = "HARNESS_NUDGES"
"""Environment variable of a second witness, which rounds otherwise."""


class Alone:
    """The communicator of a process without others."""

    def bcast(self, value: Any, root: int) -> Any:
        """Return `value`."""
        return value

    def allgather(self, value: Any) -> list[Any]:
        """Return `value`, the only one."""
        return [value]

    def Bcast(self, array: Any, root: int) -> None:
        """Leave `array` as it is."""


@dataclass(kw_only=True, eq=False)
class Judged:
    """A training: gradients of the same variables by one compiled step, or by one line of the script.

    `number`: its place among the trainings of the script. `looked`: how many of its gradients have been looked at.
    `switch`: a variable that graphs read, or a placeholder: whether to look. `held`: objects whose ids identify it.
    """

    number: int
    held: tuple[Any, ...]
    looked: int = 0
    switch: Any = None


class NoWitness:
    """A process without a witness, and the interface of those with one.

    `is_witness`: whether this process is the witness; `ranks`: how many ranks it stands for then, else 0. `coarse`:
    whether some of the script's layers compute in types of 16 bits. `nudges`: whether first weights are moved by some
    roundings.
    """

    is_witness = False
    ranks = 0
    coarse = False
    nudges = False

    def install(self, runtime: Any) -> None:
        """Prepare, once TensorFlow is there."""

    def share(self, value: Any) -> Any:
        """Return rank 0's `value` at this place of the script."""
        return value

    @property
    def over(self) -> bool:
        """Whether nothing is looked at now."""
        return True

    @property
    def has_ended(self) -> bool:
        """Whether nothing will be looked at any more."""
        return True

    def meet(self) -> None:
        """Meet the witness where a training begins: rank 0 waits until it has come."""

    def judges_next(self) -> bool:
        """Tell whether what is divided from now on is compared: the next gradient must be; False on rank 0 counts."""
        return True

    def gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], rows: Any = None, training: object = None
    ) -> list[Any]:
        """Look at the averaged `gradients` of a step, also while its graph is being built; return them.

        A graph must use what is returned. `rows`: of the batch of all ranks, a float32 scalar. `training`: the compiled
        step, None where the line of the script identifies the training.
        """
        return list(gradients)

    def off(self, graph: Any) -> dict[Any, bool]:
        """Return what to feed to a session's run of `graph` so that nobody looks at its gradients any more."""
        return {}

    def numbers(self, place: str, structure: Any) -> Any:
        """Look at the single numbers in `structure`, which the step at `place` returns; return it."""
        return structure

    def note_variable(self, variable: Any) -> None:
        """Note a variable that has just been made: what it holds is looked at after each step."""

    def leave_out(self, variables: Sequence[Any]) -> None:
        """Do not look at what `variables` hold: it is a rank's own, or is judged otherwise."""

    def arrays(self, place: str, structure: Any) -> None:
        """Look at the arrays in `structure`, which the script gets at `place`."""

    def state(self, place: str) -> None:
        """Look at what the script's variables hold after a step at `place`, and at what it has written."""

    def script_end(self) -> None:
        """Look at what the script has left at its end."""

    def await_own_files(self) -> None:
        """Wait until the witness has files of its own: what rank 0 writes from then on it does not see."""

    def reads(self) -> None:
        """Note that the script reads a file that rank 0 may have written."""

    def end(self, why: Note | None = None) -> None:
        """End the witness; `why`, or what it has shown, is noted."""


class PeerRank(NoWitness):
    """A rank above 0 while rank 0 has a witness: it looks at nothing, but builds the same graphs as rank 0.

    TensorFlow may round differently in another graph, and then the replicas would differ.
    """

    def __init__(self, *, steps: float = STEPS, over: bool = True) -> None:
        self._step = 0
        self._steps = steps
        self._over = over
        self._trainings: dict[tuple[Any, ...], Judged] = {}
        self._latest: Judged | None = None  # the training that was looked at last, unless another has begun
        self._numbers_left = steps  # that are looked at until the next gradient
        self._fed: list[tuple[Any, Judged]] = []  # the switches of sessions' graphs
        self._live = LiveVariables()
        self._outputs = WrittenOutputs()

    def install(self, runtime: Any) -> None:
        """Take note of what the script writes, where anything is looked at."""
        if not self._over:
            self._outputs.install()

    @property
    def _is_looking(self) -> bool:
        """Whether the script has made a step that is looked at, and none that is not."""
        return not self._over and self._step > 0 and self._numbers_left > 0

    @property
    def over(self) -> bool:
        """Whether nothing is looked at now."""
        return self._over or all(judged.looked >= self._steps for judged in self._trainings.values())

    @property
    def has_ended(self) -> bool:
        """Whether nothing will be looked at any more."""
        return self._over

    def _judged(self, variables: Sequence[Any], training: object) -> Judged:
        """Return the training that gradients of `variables` are of."""
        lines = script_lines(sys._getframe(1))
        token = lines[:1] if training is None else id(training)
        key = (token, id(variables[0]), len(variables))
        if key not in self._trainings:
            held = (training, variables[0])
            self._trainings[key] = Judged(number=len(self._trainings), held=held)
            if len(self._trainings) > 1:
                self.begins()
        return self._trainings[key]

    def begins(self) -> None:
        """Take note that another training begins."""
        self._latest = None

    @property
    def is_idle(self) -> bool:
        """Whether the latest training needs no more looks. An earlier one may: if it goes on, there are more."""
        return self._latest is not None and self._latest.looked >= self._steps

    def off(self, graph: Any) -> dict[Any, bool]:
        """Return the switches of a session's `graph` that are to be off."""
        return {
            switch: False
            for switch, judged in self._fed
            if switch.graph is graph and (self._over or judged.looked >= self._steps)
        }

    def gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], rows: Any = None, training: object = None
    ) -> list[Any]:
        """Look at `gradients` now, or in every run of the graph that is being built while anybody looks."""
        import tensorflow as tf

        eager = tf.executing_eagerly()
        if self._over and eager:
            return list(gradients)
        judged = self._judged(variables, training)
        self.leave_out(variables)
        if eager and judged.looked >= self._steps:
            return list(gradients)
        names = tuple(getattr(variable, "path", variable.name) for variable in variables)
        parts = [[part.values, part.indices] if isinstance(part, tf.IndexedSlices) else [part] for part in gradients]
        look = partial(self._look, judged, names, [len(part) for part in parts])

        def tensors() -> list[tf.Tensor]:
            counted = tf.zeros([]) if rows is None else rows
            return [tf.convert_to_tensor(part) for part in (counted, *itertools.chain(*parts))]

        if eager:
            look(*(tensor.numpy() for tensor in tensors()))
            return list(gradients)
        if tf.compat.v1.executing_eagerly_outside_functions():
            from harness.transparent.batch_rows import own_variable

            if judged.switch is None:
                judged.switch = own_variable(not self._over and judged.looked < self._steps, "harness_witness")
            going = judged.switch
        else:
            going = tf.compat.v1.placeholder_with_default(True, (), name="harness_witness")
            self._fed.append((going, judged))
        seen = tf.cond(going, lambda: tf.numpy_function(look, tensors(), tf.int64), lambda: tf.constant(0, tf.int64))
        with tf.control_dependencies([seen]):
            return [tf.identity(gradient) for gradient in gradients]

    def _look(self, judged: Judged, names: tuple[str, ...], counts: Sequence[int], rows: Any, *arrays: Any) -> np.int64:
        if self._over or judged.looked >= self._steps:
            return np.int64(0)
        remaining = iter(arrays)
        gradients = [measures(*itertools.islice(remaining, count)) for count in counts]
        self._step += 1
        self._latest = judged
        judged.looked += 1
        self._outputs.go_on()
        self._numbers_left = self._steps
        self.take(Observation("gradient", names, np.array(gradients), float(rows), judged.number))
        if judged.looked >= self._steps:
            self._switch_off([judged])
            if self.over:
                self._numbers_left = 0
                self._outputs.pause()
                self.rest()
        return np.int64(0)

    def _switch_off(self, trainings: Sequence[Judged]) -> None:
        """Have graphs not look at `trainings` any more."""
        import tensorflow as tf

        with tf.init_scope():
            for judged in trainings:
                if tf.executing_eagerly() and judged.switch is not None:
                    judged.switch.assign(False)

    def rest(self) -> None:
        """Take note that there is nothing to look at until another training begins."""

    def numbers(self, place: str, structure: Any) -> Any:
        """Look at the numbers that a step returns."""
        if self._over or self._numbers_left <= 0:
            return structure
        from tensorflow.python.util.nest import flatten_with_joined_string_paths

        named = structure
        if isinstance(structure, dict):  # a monitored session's has its hooks for keys, which no order sorts
            items = enumerate(structure.items())
            named = {key if isinstance(key, str) else str(number): value for number, (key, value) in items}
        names = []
        numbers = []
        for path, leaf in flatten_with_joined_string_paths(named):
            if _is_number(leaf):
                names.append(f"{place} {path}".strip())
                numbers.append([float(leaf)])
        if names:
            self._numbers_left -= 1
            self.take(Observation("number", tuple(names), np.array(numbers)))
        return structure

    def note_variable(self, variable: Any) -> None:
        """Note a variable that has just been made."""
        if not self._over:
            self._live.note(variable)

    def leave_out(self, variables: Sequence[Any]) -> None:
        """Do not look at `variables`."""
        if not self._over:
            self._live.leave_out(variables)

    def arrays(self, place: str, structure: Any) -> None:
        """Look at the arrays that a step or a prediction of the script's returns."""
        if self._is_looking:
            import tensorflow as tf

            leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(structure)]
            numeric = [leaf for leaf in leaves if np.issubdtype(leaf.dtype, np.number)]
            names = tuple(f"{place} {number}" for number in range(len(numeric)))
            if not names:
                return
            self.take(Observation("prediction", names, np.array([measures(leaf) for leaf in numeric])))

    def state(self, place: str) -> None:
        """Look at variables and at what has been written, after the steps whose gradients are looked at."""
        if self._is_looking:
            self.take(self.observed_state(place))

    def observed_state(self, place: str) -> ObservedState:
        """Return what there is to see after a step at `place`."""
        return self._live.observe(place)._replace(written=self._outputs.observe())

    def script_end(self) -> None:
        """Look at what the script has left at its end."""
        self.state(SCRIPT_END)

    def take(self, observation: Observed) -> None:
        """Compare an observation, or send it."""
        raise NotImplementedError


def _is_number(leaf: Any) -> bool:
    """Tell whether `leaf` is a single number, a tensor or NumPy's."""
    import tensorflow as tf

    if not (tf.is_tensor(leaf) or isinstance(leaf, np.number)) or len(leaf.shape):
        return False
    dtype = tf.as_dtype(leaf.dtype)
    return bool(dtype.is_floating or dtype.is_integer)
