"""Keras's `fit` at full speed: many steps in one execution where nothing looks at single batches.

A fit begins with single steps, as Keras makes them. When whatever compares those has seen enough, and where the time
that is saved is worth a compilation, its next steps are made by `FusedSteps`: as many in one execution as take 80 ms,
never across an epoch or a checkpoint.
"""

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from harness.base.turns import clock
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.divided_keras_data import ArrayPartAdapter
from harness.transparent.fused_arrays import FusedArrays
from harness.transparent.fused_loop import Body, FusedSteps
from harness.transparent.fused_pace import AgreedSteps, StepPace
from harness.transparent.patch import replace

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


class Made(NamedTuple):
    """What the train function is given in the place of an iterator: steps that have been made, and their `logs`."""

    logs: Any


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
            return self._fuses
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
        return reported_steps, Made(logs)

    def _next_count(self, iterator: Any, step: int, total: int | None) -> int:
        """Return the steps of the next execution, the same on all ranks: whole ones of the script's own number."""
        count = self._agreed.next_count(self.pace, self.callbacks, grain=self.grain, begins=step == 0)
        if total is not None:
            count = min(count, -(-(total - step) // self.grain) * self.grain)
        if self.arrays is None and self.counted and iterator._num_batches:
            return min(count, int(iterator._num_batches - iterator._steps_seen))
        return count


class Fusion:
    """Replaces what Keras's `fit` takes its executions from; `count` is of all fits."""

    def __init__(self, ranks: FusingRanks, *, always: bool) -> None:
        self.count = FusedCount()
        self._ranks = ranks
        self._always = always
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
                always=self._always,
                callbacks=callbacks,
                steps=lambda: self._steps_of(trainer),
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
        if isinstance(adapter, ArrayPartAdapter) and adapter.share_order():
            iterator.data_adapter, fit.arrays = adapter, adapter.arrays
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
