"""Steps of the loops that a script writes itself, timed where the harness meets them: at the optimizer."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from harness.base.cpu_contention import CpuUsage
from harness.base.turns import clock, current_turns
from harness.comm import turn_pass
from harness.comm.exchange_order import in_sequence
from harness.comm.turn_pass import pass_turn
from harness.horovod import mpi_exchange
from harness.transparent.patch import HorovodScript, replace
from harness.transparent.script_record import ScriptEpoch

_LEAST_STEPS = 3  # one that compiles, and two whose distance is a time
_EPOCHS = 4
_EPOCH_STEPS = 5  # at least, where there is more than one epoch


class StepTimes:
    """When every step of a script's own loop has its gradients, on this rank's `clock`, in seconds.

    Steps inside Keras's `fit` are not noted: its epochs are timed as a whole (`FitObservations`); `in_fit` tells. One
    that XLA compiles has no place for it. `native_calls` returns entry and exit of every sum of the native operation.
    """

    def __init__(self, in_fit: Callable[[], bool], native_calls: Callable[[], Any]) -> None:
        self.moments: list[float] = []
        self._native_calls = native_calls
        self._in_fit = in_fit
        self._inside = False
        self._begin: CpuUsage | None = None

    def install(self) -> None:
        """Note the steps of Keras's optimizers and of TensorFlow 1's, and the exchanges that Horovod's words make."""
        mpi_exchange.calls = []
        for owner, name, parameter in _OPTIMIZERS:
            replace(owner, name, ("self", parameter), self._step, stays=True)

    def _step(self, original: Callable[..., Any], optimizer: Any, *args: Any, **named: Any) -> Any:
        if self._inside or self._in_fit():
            return original(optimizer, *args, **named)
        if not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            return original(optimizer, *args, **named)
        pairs, others, named = _taken_out(args, named)
        with self._only_outermost():
            if tf.executing_eagerly():
                self._note()
                return original(optimizer, pairs, *others, **named)
            with tf.control_dependencies(_known(pairs)), in_sequence() as sequence:
                noted = tf.numpy_function(self._note_in_graph, [sequence], tf.int64)
            with tf.control_dependencies([noted]):
                return original(optimizer, pairs, *others, **named)

    @contextlib.contextmanager
    def _only_outermost(self) -> Iterator[None]:
        """Take the optimizers that one of them calls, as a loss scaler does, for part of its step."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _note(self) -> None:
        if self._begin is None:
            self._begin = CpuUsage.now()
        self.moments.append(clock())

    def _note_in_graph(self, _: object) -> np.int64:
        self._note()
        return np.int64(0)

    def epochs(self) -> list[ScriptEpoch]:
        """Return the first step, which compiles, without a time, and the others as epochs of equally many steps.

        They are `_EPOCHS`, so that their times show how steady it was, or one where there are few steps; the steps
        that are left over are the first ones. Nothing is returned of less than `_LEAST_STEPS`.
        """
        if self._begin is None or len(self.moments) < _LEAST_STEPS:
            return []
        count = _EPOCHS if len(self.moments) > _EPOCHS * _EPOCH_STEPS else 1
        steps = (len(self.moments) - 1) // count
        ends = self.moments[::-steps][::-1][-count - 1 :]
        python_calls = np.array(mpi_exchange.calls or [], np.float64).reshape(-1, 2)
        calls = np.concatenate([python_calls, self._native_calls()])
        usage = CpuUsage.now()
        compiled = self._epoch(1, ends[0], ends[0], calls[:0], usage)
        timed = [self._epoch(steps, begin, end, calls, usage) for begin, end in pairwise(ends)]
        return [compiled, *timed]

    def _epoch(self, steps: int, begin: float, end: float, calls: Any, usage: CpuUsage) -> ScriptEpoch:
        """Return so many steps from `begin` to `end`, with those of all exchanges' `calls` that lie between."""
        assert self._begin is not None
        is_inside = (calls[:, 0] >= begin) & (calls[:, 1] <= end)
        return ScriptEpoch(
            steps=steps,
            start=begin,
            seconds=end - begin,
            evaluate_s=0.0,
            calls=calls[is_inside] - begin,
            logs={},
            begin=self._begin,
            end=usage,
        )


_OPTIMIZERS: tuple[tuple[Any, str, str], ...] = (
    (BaseOptimizer, "apply", "grads"),
    (tf.compat.v1.train.Optimizer, "apply_gradients", "grads_and_vars"),
)


class MissedTurns:
    """Passes the turn in steps whose gradients the script has summed by calls of its own, which pass none."""

    def __init__(self) -> None:
        self._passes = 0

    def install(self) -> None:
        """Look at every optimizer's step."""
        if current_turns() is not None:
            for owner, name, parameter in _OPTIMIZERS:
                replace(owner, name, ("self", parameter), self._step, stays=True)

    def _step(self, original: Callable[..., Any], optimizer: Any, *args: Any, **named: Any) -> Any:
        pairs, others, named = _taken_out(args, named)
        passed: list[Any] = []
        if HorovodScript.active and turn_pass.built == self._passes:
            passed = pass_turn(_gradients(pairs))
        self._passes = turn_pass.built
        with tf.control_dependencies(passed):
            return original(optimizer, pairs, *others, **named)


def _taken_out(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], tuple[Any, ...], dict[str, Any]]:
    """Return the gradients, or pairs of them and variables, of an optimizer's step, and its other arguments."""
    if args:
        return list(args[0]), args[1:], named
    parameters = [parameter for _, _, parameter in _OPTIMIZERS if parameter in named]
    others = {name: value for name, value in named.items() if name not in parameters}
    return list(named[parameters[0]]), (), others


def _gradients(pairs: Sequence[Any]) -> list[Any]:
    return [pair[0] if isinstance(pair, tuple) else pair for pair in pairs]


def _known(pairs: Sequence[Any]) -> list[Any]:
    """Return the tensors of the gradients, those of sparse ones too."""
    gradients = [gradient for gradient in _gradients(pairs) if gradient is not None]
    return list(tf.nest.flatten(gradients, expand_composites=True))
