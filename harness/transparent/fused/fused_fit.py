"""Keras's `fit` at full speed: many steps in one execution where nothing looks at single batches.

A fit begins with single steps, as Keras makes them. When whatever compares those has seen enough, and where the time
that is saved is worth a compilation, its next steps are made by `FusedSteps`: as many in one execution as take 80 ms,
never across an epoch or a checkpoint.
"""

import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.trainers.trainer import Trainer

from harness.base.turns import clock
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.batch_rows import BatchShare
from harness.transparent.divided_keras_data import ArrayPartAdapter
from harness.transparent.fused.fused_arrays import FusedArrays, gathered, share_order
from harness.transparent.patch import replace

# Many steps of Keras's `fit` in one compiled loop.

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


# How many steps an execution of fused steps makes: about 80 ms of them, and as many on every rank.

TARGET_S = 0.08  # of an execution: between 20 and 100 ms where steps are that short
_LONGEST_S = 0.1
_MOST_EXECUTIONS = 16  # that follow one agreement


@dataclass(kw_only=True)
class StepPace:
    """How many steps an execution makes. `step_s`: seconds of a step, the last time that any were timed."""

    step_s: float = TARGET_S

    def timed(self, steps: int, seconds: float) -> None:
        """Take note of what some steps took."""
        self.step_s = max(seconds / steps, 1e-6)

    @property
    def steps(self) -> int:
        """The steps that make about `TARGET_S`, and no more than `_LONGEST_S` where there are several."""
        return max(1, min(round(TARGET_S / self.step_s), int(_LONGEST_S / self.step_s)))


@dataclass(kw_only=True)
class AgreedSteps:
    """The steps of executions, which are rank 0's: by its own clock each rank would choose another number.

    One rank would then leave the loop while another waits in it. `agree` returns rank 0's value on all ranks. They
    agree before the first execution, then after 1, 2, 4 ... 16 of them, then after every 16th. Where rank 0 saves the
    model within epochs, they also agree after that, and at the begin of an epoch.
    """

    agree: Callable[[Any], Any]
    _steps: int = 1
    _until_save: int | None = None  # steps from now
    _executions: int = 0  # to come before the ranks agree again
    _following: int = 1  # executions after the next agreement

    def next_count(self, pace: StepPace, callbacks: Sequence[Any], *, grain: int, begins: bool) -> int:
        """Return the steps of the next execution, a multiple of `grain`; `begins`: it is the first of an epoch."""
        saves = self._until_save is not None
        if self._executions == 0 or (saves and (begins or self._until_save == 0)):
            self._ask(pace, callbacks, grain)
        self._executions -= 1
        if self._until_save is None:
            return self._steps
        return min(self._steps, self._until_save)

    def made(self, steps: int) -> None:
        """Take note of an execution of so many steps."""
        if self._until_save is not None:
            self._until_save = max(0, self._until_save - steps)

    def _ask(self, pace: StepPace, callbacks: Sequence[Any], grain: int) -> None:
        steps = max(1, pace.steps // grain) * grain
        until_save = steps_to_save(callbacks)
        if until_save is not None:
            until_save = -(-until_save // grain) * grain
        self._steps, self._until_save = self.agree((steps, until_save))
        self._executions = self._following
        self._following = min(2 * self._following, _MOST_EXECUTIONS)


def steps_to_save(callbacks: Sequence[Any]) -> int | None:
    """Return how many steps there are until one of `callbacks` saves the model within an epoch; None if none does."""
    saving = [callback for callback in callbacks if isinstance(getattr(callback, "save_freq", None), int)]
    counts = [callback.save_freq - callback._batches_seen_since_last_saving for callback in saving]
    return max(1, min(counts)) if counts else None


_SAVED_S, _SAVED_SHARE = 3e-4, 0.04  # of a step that is fused: Python's time, and a part of its own
_COMPILE_S, _COMPILE_VARIABLE_S = 0.3, 0.02  # of a loop, and for each variable of the model


@dataclass(frozen=True, kw_only=True)
class FusingRanks:
    """What the ranks have to do with it; by default there is one.

    `agree` returns rank 0's value; `settled` tells on rank 0 whether nobody compares single steps any more; `body` is
    what a step is traced in; `divided`: whether steps take a `BatchShare`. `note` prints a note and records it.
    """

    agree: Callable[[Any], Any]
    settled: Callable[[], bool]
    body: Body
    note: Callable[[Note], None]
    divided: bool


@dataclass(kw_only=True)
class FusedCount:
    """How many of the steps of all fits were fused, and the most in one execution."""

    single: int = 0
    fused: int = 0
    longest: int = 0

    def __str__(self) -> str:
        steps = self.single + self.fused
        return f"{self.fused:,} of {steps:,} steps of fit were fused, up to {self.longest:,} in one execution"

    def add(self, steps: int) -> None:
        """Count an execution of so many fused steps."""
        self.fused += steps
        self.longest = max(self.longest, steps)


class LaterProbes(Protocol):
    """What probes a training of divided batches again in some of its steps."""

    def steps_until_probe(self, trainer: Any) -> int:
        """Return how many steps may be made before one that is to be probed; 0 if that is the next one."""

    def probe_again(self, trainer: Any, data: Any) -> None:
        """Probe the next step, of this rank's part of the batch `data`."""


class Made(NamedTuple):
    """What the train function is given in the place of an iterator: that `steps` have been made, and their `logs`."""

    logs: Any
    steps: int


class Ended(NamedTuple):
    """The same where a data set has had no further batch."""


class TrainFunction:
    """Keras's compiled train `function`, which also takes steps that have been made already. It holds their loops."""

    def __init__(self, function: Callable[[Any], Any], steps: FusedSteps) -> None:
        self.steps = steps
        self._function = function

    def __call__(self, iterator: Any) -> Any:
        """Return what the last step of an execution reports; raise StopIteration where no batch was left."""
        if isinstance(iterator, Made):
            return iterator.logs
        if isinstance(iterator, Ended):
            raise StopIteration
        return self._function(iterator)


def batch_watcher(callbacks: Sequence[Any]) -> str:
    """Return what of the script's looks at single batches among `callbacks`, as words; empty where nothing does."""
    hooks = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    for callback in callbacks:
        module = type(callback).__module__
        if module.startswith("harness.") or _is_coarse(callback):
            continue
        # The object's methods, not its class's: a script may set one on the object.
        methods = (getattr(getattr(callback, name), "__func__", None) for name in hooks)
        plain = (getattr(keras.callbacks.Callback, name) for name in hooks)
        if any(method is not default for method, default in zip(methods, plain, strict=True)):
            return f"callback {type(callback).__name__} looks at every batch"
    return ""


def _is_coarse(callback: Any) -> bool:
    """Tell whether one of Keras's own callbacks is right with several steps between its calls."""
    kinds = keras.callbacks
    if type(callback) in (kinds.ProgbarLogger, kinds.ModelCheckpoint, kinds.BackupAndRestore):
        return True
    if type(callback) is kinds.TensorBoard:
        return callback.update_freq == "epoch" and not callback.write_steps_per_second and not callback._should_trace
    return False


@dataclass(kw_only=True)
class FusedFit:
    """One call of `fit`: the epochs of its training data, in single steps and in fused ones.

    `epochs` are those that it trains; with `always` no time is weighed. `steps` returns the compiled loops, None where
    the script has a train function of its own. `arrays` are what it trains on if that is in memory; `counted`: whether
    the batches of a data set are known to be there.
    """

    trainer: Any
    ranks: FusingRanks
    count: FusedCount
    epochs: int
    always: bool
    callbacks: Sequence[Any]
    steps: Callable[[], FusedSteps | None]
    probes: LaterProbes | None = None
    arrays: FusedArrays | None = None
    counted: bool = False
    pace: StepPace = field(default_factory=StepPace)
    _agreed: AgreedSteps = field(init=False)
    _made: int = 0  # executions of single steps
    _prepared: bool | None = None
    _loops: FusedSteps | None = None
    _fuses: bool = False

    def __post_init__(self) -> None:
        self._agreed = AgreedSteps(agree=self.ranks.agree)

    @property
    def grain(self) -> int:
        """The steps of one of Keras's executions, which the script may have set."""
        return int(self.trainer.steps_per_execution)

    def epoch(self, iterator: Any) -> Iterator[tuple[int, int, Any]]:
        """Yield what Keras's `_enumerate_iterator` does: first and last step of each execution, and what it takes."""
        iterator.data_adapter.on_epoch_begin()
        total = iterator.steps_per_epoch or iterator._num_batches
        if iterator._current_iterator is None or iterator.steps_per_epoch is None:
            self._begin_pass(iterator)
        step = 0
        taken: Any = None
        while total is None or step < total:
            if iterator._num_batches and iterator._steps_seen >= iterator._num_batches:
                if iterator.steps_per_epoch:
                    iterator._interrupted_warning()
                break
            if self._is_fused(iterator, step, total):
                steps, taken = self._execute(iterator, step, total)
                iterator._steps_seen += steps
                yield step, step + steps - 1, taken
            else:
                steps = self.grain
                taken = None
                begin = clock()
                iterator._steps_seen += steps
                yield step, step + steps - 1, iterator._current_iterator
                self._note_single(steps, clock() - begin)
            step += steps
        if self._loops is not None:
            self._loops.results = taken.logs if self._loops.lean and isinstance(taken, Made) else None
        if total is not None and iterator._num_batches and iterator._steps_seen >= iterator._num_batches:
            # Keras starts another iterator here; a data set that shuffles draws a seed for each.
            iterator._current_iterator = None if self.arrays is not None else iter(iterator._get_iterator())
            iterator._steps_seen = 0
        iterator.data_adapter.on_epoch_end()

    def _begin_pass(self, iterator: Any) -> None:
        """Begin the data again from its first batch."""
        if self.arrays is not None:
            self.arrays.shuffle()
        fresh = self.arrays if self._fuses and self.arrays is not None else iter(iterator._get_iterator())
        iterator._current_iterator = fresh
        iterator._steps_seen = 0

    def _note_single(self, steps: int, seconds: float) -> None:
        self._made += 1
        self.count.single += steps
        if (loops := self.steps()) is not None:
            loops.single += steps
        self.pace.timed(steps, seconds)

    def _is_fused(self, iterator: Any, step: int, total: int | None) -> bool:
        """Tell whether the next steps, from number `step` of an epoch on, are fused. All ranks together."""
        if self._fuses or self._prepared is False or not self._made:
            return self._fuses and (self.arrays is not None or self._steps_until_probe() >= self.grain)
        if self._prepared is None:
            if self._made < 2 and not self.always:
                return False  # the first one was compiled: its time tells nothing
            self._prepared = self.ranks.agree(self._saves_time(step, total)) and self._prepare(iterator)
        if self._prepared and (step == 0 or self._made & (self._made - 1) == 0):  # after 1, 2, 4, 8 ... executions
            self._fuses = self.ranks.agree(self.ranks.settled())
        return self._fuses

    def _saves_time(self, step: int, total: int | None) -> bool:
        """Tell whether the steps to come save more time than another compilation takes."""
        if self.always or total is None:
            return True
        loops = self.steps()
        if loops is None or loops.traced:
            return True
        saved_s = _SAVED_S + _SAVED_SHARE * self.pace.step_s
        compile_s = _COMPILE_S + _COMPILE_VARIABLE_S * len(self.trainer.variables)
        steps = self.epochs * total - step + loops.single  # who has made many will make as many again
        return total > self.grain and steps * saved_s > compile_s

    def _prepare(self, iterator: Any) -> bool:
        """Trace the compiled loops now: later the script may have changed what the single steps were traced from."""
        self._loops = self.steps()
        if self._loops is None:
            why = "the script has a train function of its own"
        elif self.arrays is not None:
            why = self._loops.prepare_arrays(self.arrays)
        else:
            why = self._loops.prepare_batches(iterator._current_iterator, counted=self.counted)
        if why:
            self.ranks.note(Note(code=NoteCode.NOT_FUSED, values={"reason": why}))
        return not why

    def _execute(self, iterator: Any, step: int, total: int | None) -> tuple[int, Any]:
        """Make the steps from number `step` of an epoch on; return how many Keras is told, and what it is given."""
        assert self._loops is not None
        if self.arrays is not None and self.probes is not None and self._steps_until_probe() < self.grain:
            self.probes.probe_again(self.trainer, self.arrays.batch_at(iterator._steps_seen))
        count = self._next_count(iterator, step, total)
        begin = clock()
        if self.arrays is not None:
            iterator._current_iterator = self.arrays
            steps, logs = self._loops.over_arrays(self.arrays, iterator._steps_seen, count)
        else:
            try:
                steps, logs = self._loops.over_batches(iterator._current_iterator, count, counted=self.counted)
            except tf.errors.OutOfRangeError:
                return self.grain, Ended()
        for leaf in tf.nest.flatten(logs)[:1]:
            leaf.numpy()  # which waits for the last step
        self.pace.timed(steps, clock() - begin)
        self.count.add(steps)
        reported_steps = -(-steps // self.grain) * self.grain
        self._agreed.made(reported_steps)
        return reported_steps, Made(logs, reported_steps)

    def _steps_until_probe(self) -> int:
        return sys.maxsize if self.probes is None else self.probes.steps_until_probe(self.trainer)

    def _next_count(self, iterator: Any, step: int, total: int | None) -> int:
        """Return the steps of the next execution, the same on all ranks: whole ones of the script's own number."""
        count = self._agreed.next_count(self.pace, self.callbacks, grain=self.grain, begins=step == 0)
        if total is not None:
            count = min(count, -(-(total - step) // self.grain) * self.grain)
        count = min(count, self._steps_until_probe() // self.grain * self.grain)
        if self.arrays is None and self.counted and iterator._num_batches:
            return min(count, int(iterator._num_batches - iterator._steps_seen))
        return count


class Fusion:
    """Replaces what Keras's `fit` takes its executions from; `count` is of all fits."""

    def __init__(self, ranks: FusingRanks, *, always: bool) -> None:
        self.count = FusedCount()
        self.probes: LaterProbes | None = None
        self._ranks = ranks
        self.always = always
        self._pending: FusedFit | None = None
        self._fits: weakref.WeakKeyDictionary[Any, FusedFit] = weakref.WeakKeyDictionary()  # by their iterators
        self._functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Put the replacements in place: within whatever divides batches over ranks."""
        replace(TensorFlowTrainer, "_make_function", ("self", "step_function"), self._make_function)
        replace(TensorFlowTrainer, "make_train_function", ("self", "force"), self._make_train_function)
        replace(TensorFlowTrainer, "fit", ("self", "x", "y", "batch_size", "epochs"), self._fit)
        replace(EpochIterator, "__init__", ("self", "x", "y", "sample_weight", "batch_size"), self._init)
        replace(EpochIterator, "_enumerate_iterator", ("self",), self._enumerate)

    def _make_function(self, original: Callable[..., Any], trainer: Any, step_function: Callable[..., Any]) -> Any:
        """Have a train function take steps that have been made already in the place of an iterator."""
        function = original(trainer, step_function)
        if step_function.__name__ != "train_step":
            return function
        steps = FusedSteps(trainer, step_function, self._ranks.body, divided=self._ranks.divided)
        trained = TrainFunction(function, steps)
        _, train_function = self._functions.get(trainer, (None, None))
        # Compiled again, the steps may be within the same train function.
        self._functions[trainer] = weakref.ref(trained.steps), train_function
        return trained

    def _make_train_function(self, original: Callable[..., Any], trainer: Any, force: bool = False) -> Any:
        """Take note of the train function that Keras has made: the script may put another in its place."""
        before = trainer.train_function
        original(trainer, force)
        if trainer.train_function is not before and trainer in self._functions:
            steps, _ = self._functions[trainer]
            self._functions[trainer] = steps, weakref.ref(trainer.train_function)

    def _steps_of(self, trainer: Any) -> FusedSteps | None:
        steps, function = self._functions.get(trainer, (None, None))
        if function is None or function() is not trainer.train_function:
            return None
        fused_steps: FusedSteps | None = steps()
        return fused_steps

    def take_results(self, trainer: Any) -> Any:
        """Return the results of the metrics of `trainer` after an epoch's last fused steps; only once, else None.

        Keras asks for them after the last step of an epoch. To compute them again costs an exchange and 2 ms.
        """
        steps = self._steps_of(trainer)
        if steps is None:
            return None
        results, steps.results = steps.results, None
        return results

    def _fit(self, original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(original).bind(trainer, *args, **kwargs)
        call.apply_defaults()
        listed = call.arguments["callbacks"]
        if isinstance(listed, keras.callbacks.CallbackList):
            listed = listed.callbacks
        callbacks = keras.tree.flatten(listed) if listed else []
        why = batch_watcher(callbacks)
        if trainer.run_eagerly or tf.config.functions_run_eagerly():
            why = "they run eagerly"
        if why:
            self._ranks.note(Note(code=NoteCode.NOT_FUSED, values={"reason": why}))
        else:
            self._pending = FusedFit(
                trainer=trainer,
                ranks=self._ranks,
                count=self.count,
                epochs=call.arguments["epochs"] - call.arguments["initial_epoch"],
                always=self.always,
                callbacks=callbacks,
                steps=lambda: self._steps_of(trainer),
                probes=self.probes,
            )
        try:
            return original(trainer, *args, **kwargs)
        finally:
            self._pending = None

    def _init(self, original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> None:
        fit, self._pending = self._pending, None  # the first iterator of a fit is of its training data
        original(iterator, *args, **kwargs)
        if fit is not None and self._follows(fit, iterator):
            self._fits[iterator] = fit

    def _follows(self, fit: FusedFit, iterator: Any) -> bool:
        """Tell whether the data of `iterator` can be read inside a compiled loop, and prepare that."""
        adapter = iterator.data_adapter
        if isinstance(adapter, ArrayDataAdapter):
            adapter = ArrayPartAdapter.alone(adapter)
        arrays = share_order(adapter) if isinstance(adapter, ArrayPartAdapter) else None
        if arrays is not None:
            iterator.data_adapter = adapter
            fit.arrays = arrays
            return True
        source = getattr(adapter, "source", adapter)
        if not isinstance(source, (ArrayDataAdapter, TFDatasetAdapter)):
            reason = "its batches come from the script's own Python"
            self._ranks.note(Note(code=NoteCode.NOT_FUSED, values={"reason": reason}))
            return False
        endless = adapter.get_tf_dataset().cardinality() == tf.data.INFINITE_CARDINALITY
        fit.counted = adapter.num_batches is not None or bool(endless)
        return True

    def _enumerate(self, original: Callable[..., Any], iterator: Any) -> Any:
        fit = self._fits.get(iterator)
        return original(iterator) if fit is None else fit.epoch(iterator)
