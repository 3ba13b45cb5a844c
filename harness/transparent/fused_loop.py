"""Many steps of Keras's `fit` in one compiled loop."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers.trainer import Trainer

from harness.transparent.batch_rows import BatchShare
from harness.transparent.fused_arrays import FusedArrays, gathered

_DRAWING = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)
"""Operations that keep what they have drawn in themselves: in another graph they would begin again."""

Body = Callable[[bool], AbstractContextManager[None]]
"""Returns what a step is traced in; True for a lean one, of which nothing but the variables is looked at."""


def is_plain(trainer: Any) -> bool:
    """Tell whether all that a training step of `trainer` does and reports is Keras's own."""
    names = ("train_step", "compute_loss", "compute_metrics", "get_metrics_result", "_compute_loss")
    kind = type(trainer)
    return all(
        name not in vars(trainer) and getattr(kind, name) is getattr(owner, name)
        for name in names
        for owner in [TensorFlowTrainer if name == "train_step" else Trainer]
    )


class FusedSteps:
    """The compiled loops of one train function; `step` makes a step of a batch and returns what it reports.

    `lean`: whether that is nothing but the results of Keras's metrics, so that only the last step needs to report.
    """

    def __init__(self, trainer: Any, step: Callable[[Any], Any], body: Body, *, divided: bool) -> None:
        self._trainer = trainer
        self._body = body
        self._divided = divided
        self.lean = is_plain(trainer)
        self._step = trainer._autoconvert_optionals(step)
        self._loops: dict[Any, Any] = {}
        self.single = 0  # steps that were made one by one
        self.results: Any = None  # of the metrics, after an epoch whose last steps were fused

    @property
    def traced(self) -> bool:
        """Whether loops are there already."""
        return bool(self._loops)

    def prepare_arrays(self, arrays: FusedArrays) -> str:
        """Trace the loops over `arrays`; return why they cannot take the place of single steps, if so."""
        for numbers, share in arrays.stretches(0, arrays.steps):
            loop = self._of_arrays(numbers, share)
            specs = tree.map_structure(_any_length, (arrays.sources, numbers))
            if why := unfit(loop.get_concrete_function(*specs).graph):
                return why
        return ""

    def prepare_batches(self, batches: Any, *, counted: bool) -> str:
        """Trace the loop over an iterator of `batches`, which are known to be there if `counted`; return the same."""
        loop = self._of_batches(counted=counted)
        return unfit(loop.get_concrete_function(batches, tf.constant(1)).graph)

    def over_arrays(self, arrays: FusedArrays, first: int, count: int) -> tuple[int, Any]:
        """Make up to `count` steps from number `first` of the epoch on; return how many, and what the last reports."""
        steps = 0
        logs: Any = {}
        for numbers, share in arrays.stretches(first, count):
            logs = self._of_arrays(numbers, share)(arrays.sources, numbers)
            steps += len(numbers)
        return steps, logs

    def over_batches(self, batches: Any, count: int, *, counted: bool) -> tuple[int, Any]:
        """Make up to `count` steps on the next of `batches`, an iterator; return as `over_arrays` does."""
        steps, logs = self._of_batches(counted=counted)(batches, tf.constant(count))
        return int(steps), logs

    def _of_arrays(self, numbers: "np.ndarray[Any, Any]", share: BatchShare) -> Any:
        """Return the loop over batches of as many rows, of the same `share`."""
        key = (numbers.shape[1], share.rows, share.place)
        if key not in self._loops:
            self._loops[key] = self._compiled(partial(self._array_loop, share, numbers.shape[1]))
        return self._loops[key]

    def _of_batches(self, *, counted: bool) -> Any:
        if counted not in self._loops:
            self._loops[counted] = self._compiled(self._counted_loop if counted else self._open_loop)
        return self._loops[counted]

    def _compiled(self, loop: Callable[..., Any]) -> Any:
        return tf.function(tf.autograph.experimental.do_not_convert(loop), reduce_retracing=True, autograph=False)

    def _array_loop(self, share: BatchShare, rows: int, sources: Any, order: tf.Tensor) -> Any:
        """Make a step on the rows that each line of `order` numbers; return what the last one reports."""
        steps = tf.shape(order)[0]

        def batch(number: tf.Tensor) -> Any:
            data = gathered(sources, tf.ensure_shape(order[number], [rows]))
            return self._shared(data, share)

        return self._repeated(steps, batch)

    def _shared(self, data: Any, share: BatchShare) -> Any:
        """Return `data` as the step takes it on several ranks, or alone."""
        if not self._divided:
            return data
        if share.rows is None:
            return share._replace(data=data)
        place = tf.constant(share.place, tf.int64)
        return BatchShare(data, tf.constant(share.rows, tf.float32), place)

    def _counted_loop(self, batches: Any, count: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return count, self._repeated(count, lambda _: batches.get_next())

    def _repeated(self, count: tf.Tensor, batch: Callable[[tf.Tensor], Any]) -> Any:
        """Make `count` steps, at least one, of the batches that `batch` returns for their numbers."""
        if self.lean:

            def body(number: tf.Tensor) -> list[tf.Tensor]:
                with self._body(True), lean_update(self._trainer.optimizer):
                    self._step(batch(number))
                return [number + 1]

            tf.while_loop(lambda number: number < count, body, [tf.constant(0)], parallel_iterations=1)
            return self._trainer.get_metrics_result()
        one_step = self._traced_once()
        logs = one_step(batch(tf.constant(0)))
        _, logs = tf.while_loop(
            lambda number, _: number < count,
            lambda number, _: (number + 1, one_step(batch(number))),
            [tf.constant(1), logs],
            parallel_iterations=1,
        )
        return logs

    def _open_loop(self, batches: Any, count: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Make up to `count` steps, while there are batches; a step is made in any case."""
        one_step = self._traced_once()

        def going(number: tf.Tensor, following: Any, _: Any) -> tf.Tensor:
            return (number < count) & following.has_value()

        def after(number: tf.Tensor) -> Any:
            """Return the batch after so many steps; none where this execution has made its steps."""
            nothing = partial(tf.experimental.Optional.empty, batches.element_spec)
            return tf.cond(number < count, batches.get_next_as_optional, nothing)

        def body(number: tf.Tensor, following: Any, _: Any) -> Any:
            logs = one_step(following.get_value())
            return number + 1, after(number + 1), logs

        logs = one_step(batches.get_next())
        begin = [tf.constant(1), after(tf.constant(1)), logs]
        steps, _, logs = tf.while_loop(going, body, begin, parallel_iterations=1)
        return steps, logs

    def _traced_once(self) -> Callable[[Any], Any]:
        """Return a step that may be called at several places of a graph, in each of which it is the same function."""

        def step(data: Any) -> Any:
            with self._body(False), lean_update(self._trainer.optimizer):
                return self._step(data)

        compiled: Callable[[Any], Any] = tf.function(
            step, reduce_retracing=True, autograph=False, jit_compile=self._trainer.jit_compile
        )
        return compiled


def _any_length(values: Any) -> tf.TensorSpec:
    """Return what is known of arrays like `values` with any number of rows."""
    return tf.TensorSpec([None, *values.shape[1:]], values.dtype)


def unfit(graph: Any) -> str:
    """Return why a loop's `graph` may train otherwise than single steps do, if so."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    drawing = sorted({node.op for node in nodes} & _DRAWING)
    return f"its steps draw numbers that follow from how often an operation has run ({drawing[0]})" if drawing else ""


@contextlib.contextmanager
def lean_update(optimizer: Any) -> Iterator[None]:
    """Have Keras's SGD subtract the gradient in one operation while a step is traced; the numbers are the same."""
    if type(optimizer) is not keras.optimizers.SGD or "update_step" in vars(optimizer):
        yield
        return
    vars(optimizer)["update_step"] = partial(_descend, optimizer)
    try:
        yield
    finally:
        del vars(optimizer)["update_step"]


def _descend(optimizer: Any, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
    """Make the step of `keras.optimizers.SGD.update_step` by TensorFlow's operation for it."""
    if not isinstance(gradient, tf.Tensor):
        type(optimizer).update_step(optimizer, gradient, variable, learning_rate)
        return
    kind = variable.dtype
    gradient = tf.cast(gradient, kind)
    rate = tf.cast(learning_rate, kind)
    if optimizer.momentum == 0:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
        return
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=optimizer.momentums[optimizer._get_variable_index(variable)].value.handle,
        lr=rate,
        grad=gradient,
        momentum=tf.constant(optimizer.momentum, kind),
        use_nesterov=optimizer.nesterov,
    )
