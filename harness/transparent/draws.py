"""Random numbers of a divided batch: each rank draws its rows' part of what one process draws for all of them.

A stateless draw follows from seed, counter and place alone (Salmon et al. 2011, "Parallel random numbers: as easy as 1,
2, 3"): the counter is set to the rank's first row, and nothing is drawn for other ranks' rows.
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.tensor_util import constant_value_as_shape

from harness.transparent.runtime import Runtime, in_dataset
from harness.transparent.witness import DRAWN

_ROOMS = ("gen_random_ops", "gen_stateless_random_ops", "gen_stateless_random_ops_v2", "gen_stateful_random_ops")
_DRAWS = ("random_", "stateless_", "stateful_", "truncated_", "parameterized_", "multinomial")
_BY_PLACE = tuple(f"stateless_random_{kind}_v2" for kind in ("uniform", "normal", "uniform_int", "uniform_full_int"))
_OTHERS = ("random_shuffle", "stateless_random_get_key_counter", "stateless_random_get_alg")  # orders, and no draws
_BYTES = 16  # of one step of Philox's counter


class ScriptDraws:
    """Replaces what draws: what has no place for a row's number is told to the witness."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def install(self) -> None:
        """Put the replacements in place; one process alone needs none."""
        if self._runtime.witness.beside:
            return
        for room in (importlib.import_module(f"tensorflow.python.ops.{name}") for name in _ROOMS):
            for name, original in list(vars(room).items()):
                if not callable(original) or not name.startswith(_DRAWS) or "eager_" in name:
                    continue
                if name in _BY_PLACE:
                    setattr(room, name, partial(self._by_place, original))
                elif not name.startswith(_OTHERS):
                    setattr(room, name, partial(self._otherwise, original))

    def _otherwise(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._in_training():
            self._runtime.witness.end(DRAWN)
        return original(*args, **kwargs)

    def _by_place(
        self, original: Callable[..., Any], shape: Any, key: Any, counter: Any, alg: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Draw the rank's part of numbers of which each row of a batch has equally many."""
        graph = tf.compat.v1.get_default_graph()
        if in_dataset(graph) and any(op.type == "AssignVariableOp" for op in graph.get_operations()):
            self._runtime.witness.end(DRAWN)  # a layer's state, which the data set's threads take in any order
        begin, rows, shown = self._runtime.rows.place() if self._in_training(by_place=True) else (0, 0, 0)
        if shown == 0:
            return original(shape, key, counter, alg, *args, **kwargs)
        known = constant_value_as_shape(tf.convert_to_tensor(shape))
        lead = known[0] if known.rank else 0  # None: known when it is drawn
        if lead and shown and lead != shown and lead % shown == 0:  # rows of rows, or a number that no batch has given
            self._runtime.witness.end(DRAWN)
        if self._runtime.world.rank == 0 or lead not in (None, shown):
            return original(shape, key, counter, alg, *args, **kwargs)
        dims, rows = tf.cast(shape, tf.int64), tf.cast(rows, tf.int64)
        size = tf.reduce_prod(dims)
        before = tf.where(dims[0] % rows == 0, tf.cast(begin, tf.int64) * (size // rows), 0)
        words = _BYTES // max(tf.as_dtype(kwargs["minval"].dtype if "minval" in kwargs else kwargs["dtype"]).size, 4)
        steps = tf.stack([tf.cast(before // words, tf.uint64), tf.constant(0, tf.uint64)])
        drawn = original([before % words + size], key, counter + steps, alg, *args, **kwargs)
        return tf.reshape(drawn[before % words :], shape)

    def _in_training(self, *, by_place: bool = False) -> bool:
        """Tell whether a step draws; first weights, and `by_place` what data sets draw, are alike on all ranks."""
        if tf.executing_eagerly():
            trains = self._runtime.feeding is not None or self._runtime.in_trainer
        else:
            graph = tf.compat.v1.get_default_graph()
            trains = graph.building_function and not (by_place and in_dataset(graph))
        frame: Any = sys._getframe(2)
        while trains and frame is not None and "initializers" not in frame.f_code.co_filename:
            frame = frame.f_back
        return trains and frame is None
