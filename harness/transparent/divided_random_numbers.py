"""Random numbers of a divided batch: each rank has its rows' part of what one process draws for all of them.

A stateless draw follows from seed, counter and place alone (Salmon et al. 2011, "Parallel random numbers: as easy as 1,
2, 3"): the counter is set to the rank's first row, and nothing is drawn for other ranks' rows. Where an operation keeps
the state, every rank draws for all rows, which leaves the state as alone.
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf
from keras.src.random.seed_generator import SeedGenerator
from tensorflow.python.framework.tensor_util import constant_value_as_shape

from harness.base.errors import UserError
from harness.transparent.patch import put, replace, script_place
from harness.transparent.runtime import Runtime, in_dataset

_MODULES = ("gen_random_ops", "gen_stateless_random_ops", "gen_stateless_random_ops_v2", "gen_stateful_random_ops")
_DRAWS = ("random_", "stateless_", "stateful_", "truncated_", "parameterized_", "multinomial")
_BY_PLACE = tuple(f"stateless_random_{kind}_v2" for kind in ("uniform", "normal", "uniform_int", "uniform_full_int"))
_FOR_ALL = (
    "random_standard_normal",
    "random_uniform",
    "random_uniform_int",
    "truncated_normal",
    "stateless_truncated_normal_v2",
)
_NO_DRAWS = ("random_shuffle", "stateless_random_get_key_counter", "stateless_random_get_alg")
_BYTES = 16  # of one step of Philox's counter
DIVIDED = "harness_drawn"
"""In the names of operations that draw for all rows."""


class Part(NamedTuple):
    """Which numbers of a draw for all ranks' rows are this rank's; int64 scalars.

    The number of the first of them, how many there are, and how many all ranks have. `per_row`: how many each row of
    the batch has, 0 if the draw is not one of rows.
    """

    first: Any
    count: Any
    total: Any
    per_row: Any


class ScriptDraws:
    """Replaces TensorFlow's operations that draw; a draw that does not follow from a row's place has whole batches."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def install(self) -> None:
        """Put the replacements in place; one process alone needs none."""
        if self._runtime.witness.is_witness:
            return
        for module in (importlib.import_module(f"tensorflow.python.ops.{name}") for name in _MODULES):
            for name, original in list(vars(module).items()):
                if not callable(original) or not name.startswith(_DRAWS) or "eager_" in name:
                    continue
                if name in _BY_PLACE:
                    put(module, name, partial(self._by_place, original))
                elif name in _FOR_ALL:
                    put(module, name, partial(self._for_all, original))
                elif not name.startswith(_NO_DRAWS):
                    put(module, name, partial(self._otherwise, original))
        replace(tf.random.Generator, "__init__", ("self",), self._make)
        replace(SeedGenerator, "__init__", ("self",), self._make)
        replace(tf.random.Generator, "_prepare_key_counter", ("self", "shape"), self._advance)

    def _otherwise(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Draw numbers that are not of single rows."""
        if self._trains() and not in_dataset(tf.compat.v1.get_default_graph()):
            self._have_whole_batches()
        return original(*args, **kwargs)

    def _have_whole_batches(self) -> None:
        """Have the training at hand get whole batches, of which every rank draws what one process would.

        Raises:
            UserError: the batch at hand is divided already.
        """
        runtime = self._runtime
        if not runtime.compares_with_one_process:
            return
        probe = runtime.collectives.trial.probe
        loop = runtime.loop
        graph = tf.compat.v1.get_default_graph()
        while graph is not None:
            graph._harness_why_whole = drawn_otherwise()
            graph = getattr(graph, "outer_graph", None)
        if probe is not None:
            probe.whole_for.append(drawn_otherwise())
        elif loop is not None and loop.batch is not None and not (loop.is_divided or runtime.in_trainer):
            loop.why_whole = loop.why_whole or drawn_otherwise()
        elif runtime.rows.is_divided and not (runtime.undivided.get() or runtime.quiet):
            raise UserError(
                f"{drawn_otherwise()}, in parts of a batch: run it with -n 1, or with --unjudged all the same"
            )

    def _by_place(
        self, original: Callable[..., Any], shape: Any, key: Any, counter: Any, alg: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Draw the rank's part of numbers of which each row of a batch has equally many."""
        graph = tf.compat.v1.get_default_graph()
        part = None if in_dataset(graph) else self._part(shape)
        if part is not None and _stacked(shape):
            return _rows_of_all(original, part, shape, key, counter, alg, *args, **kwargs)
        if part is None or self._runtime.world.rank == 0:
            return original(shape, key, counter, alg, *args, **kwargs)
        size = tf.reduce_prod(tf.cast(shape, tf.int64))
        before = part.first * (size // tf.maximum(part.count, 1))
        words = _BYTES // max(tf.as_dtype(kwargs["minval"].dtype if "minval" in kwargs else kwargs["dtype"]).size, 4)
        steps = tf.stack([tf.cast(before // words, tf.uint64), tf.constant(0, tf.uint64)])
        drawn = original([before % words + size], key, counter + steps, alg, *args, **kwargs)
        return tf.reshape(drawn[before % words :], shape)

    def _for_all(self, original: Callable[..., Any], shape: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw what all ranks' rows have of such numbers, and return this rank's."""
        loop = self._runtime.loop
        if in_dataset(tf.compat.v1.get_default_graph()):
            return original(shape, *args, **kwargs)
        if loop is not None and tf.executing_eagerly() and self._trains():
            # A step of the trial draws eagerly what other steps draw in a graph.
            if self._runtime.collectives.trial.goes_on:
                self._have_whole_batches()
                return original(shape, *args, **kwargs)
            if loop.is_observed and self._runtime.compares_with_one_process:
                loop.why_untried = drawn_otherwise()
        part = self._part(shape)
        if part is None:
            return original(shape, *args, **kwargs)
        return _rows_of_all(original, part, shape, *args, **kwargs)

    def _make(self, original: Callable[..., Any], generator: Any, *args: Any, **kwargs: Any) -> None:
        """Make a generator; a probe puts its state back."""
        original(generator, *args, **kwargs)
        if isinstance(generator, SeedGenerator):
            self._runtime.variables.seeds.append(generator.state)
        else:
            self._runtime.variables.add_untrained(generator.state)

    def _advance(self, original: Callable[..., Any], generator: Any, shape: Any) -> Any:
        """Advance a generator's state by what all ranks' rows draw."""
        part = self._part(shape)
        return original(generator, shape if part is None else _of_all(part, shape))

    def _part(self, shape: Any) -> Part | None:
        """Return which part of a draw of this `shape` is this rank's, along its first dimension; None if all of it is.

        Each row of the batch gets equally many numbers.
        """
        graph = tf.compat.v1.get_default_graph()
        session = not tf.compat.v1.executing_eagerly_outside_functions()
        static_shape = constant_value_as_shape(tf.convert_to_tensor(shape))
        length = static_shape.as_list()[0] if static_shape.rank else None  # None: known when it is drawn
        in_step = not (bool(length) or graph.building_function) if session else length != 0 and self._trains()
        if static_shape.rank == 0 or not in_step:
            return None
        place = self._runtime.rows.place()
        if place.static_rows == 0:
            return None
        if static_shape.rank is None:
            self._have_whole_batches()
            return None
        if length and place.static_rows and length != place.static_rows and length % place.static_rows == 0:
            self._have_whole_batches()  # rows of rows, or a number that no batch has given
        if length not in (None, place.static_rows):
            return None
        first, rows, total = (tf.cast(number, tf.int64) for number in place[:3])
        drawn = tf.cast(shape, tf.int64)[0]
        per_row = tf.where(tf.equal(drawn % rows, 0) & (total > 0), drawn // rows, 0)
        return Part(first * per_row, drawn, tf.where(per_row > 0, total * per_row, drawn), per_row)

    def _trains(self) -> bool:
        """Tell whether a step draws, or a data set; first weights are alike on all ranks."""
        if tf.executing_eagerly():
            trains = self._runtime.loop is not None or self._runtime.in_trainer
        else:
            trains = tf.compat.v1.get_default_graph().building_function
        frame: Any = sys._getframe(2)
        while trains and frame is not None and "initializers" not in frame.f_code.co_filename:
            frame = frame.f_back
        return trains and frame is None


def drawn_otherwise() -> str:
    """Return why batches cannot be divided where the script draws what does not follow from a row's place."""
    return f"the script draws random numbers that are not of single rows ({script_place()})"


def _rows_of_all(original: Callable[..., Any], part: Part, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw for all ranks' rows, and return this rank's."""
    with tf.name_scope(DIVIDED):
        batches = tf.maximum(part.per_row, 1) if _stacked(shape) else tf.constant(1, tf.int64)
        first, count, total = (number // batches for number in part[:3])
        indices = tf.reshape(tf.range(batches)[:, None] * total + tf.range(first, first + count), [-1])
        drawn = tf.gather(original(_of_all(part, shape), *args, **kwargs), indices)
        return tf.ensure_shape(drawn, constant_value_as_shape(tf.convert_to_tensor(shape)))


def _stacked(shape: Any) -> bool:
    """Tell whether a draw is for several batches in a row (generated and real rows, say), not for parts of each row."""
    op = None if tf.executing_eagerly() else tf.convert_to_tensor(shape).op
    while op is not None and op.type != "Shape":  # of what has it
        op = op.inputs[0].op if op.inputs else None
    while op is not None and op.inputs and "Call" not in op.type and op.type not in ("While", "If", "Transpose"):
        if op.type == "ConcatV2" and tf.get_static_value(op.inputs[-1]) == 0:
            return True
        if op.type == "Reshape" and len({_row_size(op.inputs[0]), _row_size(op.outputs[0])}) > 1:
            return False
        op = op.inputs[0].op
    return False


def _row_size(value: Any) -> int | None:
    return value.shape[1:].num_elements() if value.shape.rank else None


def _of_all(part: Part, shape: Any) -> Any:
    """Return the shape of a draw of all ranks' rows, of which this rank's is `shape`."""
    return tf.concat([[part.total], tf.cast(shape, tf.int64)[1:]], 0)
