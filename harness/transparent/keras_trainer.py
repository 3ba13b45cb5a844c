"""Keras 3's `fit`, `evaluate` and steps by hand: each step knows its rows, and all ranks stop at the same time."""

import contextlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, cast

import keras
import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from harness.base.errors import UserError
from harness.comm.world import abort
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.batch_rows import BatchShare, divide, leading, length
from harness.transparent.collectives import Scalars
from harness.transparent.fused import Ended, Fusion, Made
from harness.transparent.keras_layers import along_rows, is_keras_object, rows_of_all_ranks
from harness.transparent.patch import put, replace, script_place
from harness.transparent.preflight import compare, model_facts
from harness.transparent.probe import CheckTimes, probe_trainer, undrawn
from harness.transparent.replica_variables import initialised
from harness.transparent.runtime import Runtime, switched_on


@dataclass(kw_only=True)
class TrainerStep:
    """A training or test step that Keras compiles; what is found out about a step belongs to this step alone.

    `written`: the step as the script or Keras has written it. `sources`: the data sets on which it has been probed.
    `times`: when it is probed again.
    """

    trainer: Any
    written: Callable[..., Any]
    sources: set[tuple[int, ...]] = field(default_factory=set)
    times: CheckTimes = field(default_factory=CheckTimes)


class Trainers:
    """Replaces `fit`, `evaluate`, `predict`, `train_on_batch`, `test_on_batch` and the maker of compiled steps."""

    def __init__(
        self, runtime: Runtime, scalars: Scalars, end_trial: Callable[[], None], *, fusion: Fusion | None = None
    ) -> None:
        self._runtime = runtime
        self._fusion = fusion
        self._scalars = scalars
        self._end_trial = end_trial
        self._whole: weakref.WeakSet[Any] = weakref.WeakSet()
        self._unjudged: weakref.WeakSet[Any] = weakref.WeakSet()  # whose training no witness compares
        self._asked: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._trainings: weakref.WeakKeyDictionary[Any, weakref.ref[TrainerStep]] = weakref.WeakKeyDictionary()
        self._fitting: int | None = None  # the thread that trains by `fit`
        self._source: tuple[int, ...] = ()  # of the current batches: the script's x and y, by id

    def install(self) -> None:
        """Put the replacements in place."""
        if self._fusion is not None:
            self._fusion.probes = self
            self._fusion.install()
        replace(TensorFlowTrainer, "_make_function", ("self", "step_function"), self._make_function)
        replace(TensorFlowTrainer, "fit", ("self", "x", "y", "batch_size", "epochs"), self._fit)
        replace(TensorFlowTrainer, "evaluate", ("self", "x", "y"), self._evaluate)
        replace(TensorFlowTrainer, "predict", ("self", "x"), self._predict)
        for name in ("train_on_batch", "test_on_batch"):
            replace(TensorFlowTrainer, name, ("self", "x", "y", "sample_weight"), self._on_batch)
        for name in ("MirroredStrategy", "MultiWorkerMirroredStrategy", "OneDeviceStrategy"):
            original = getattr(tf.distribute, name)  # replaced by a class: scripts use it in `isinstance`
            put(tf.distribute, name, type(name, (original,), {"__new__": partial(self._strategy, original)}))

    def _strategy(self, original: Callable[..., Any], _: type, *args: Any, **kwargs: Any) -> Any:
        """Return TensorFlow's default strategy, which does nothing, in place of one with a single replica."""
        strategy = original(*args, **kwargs)
        if strategy.num_replicas_in_sync > 1:
            return strategy
        self._runtime.note(Note(code=NoteCode.STRATEGY_LEFT_OUT))
        return tf.distribute.get_strategy()

    def _make_function(self, original: Callable[..., Any], trainer: Any, step_function: Callable[..., Any]) -> Any:
        """Wrap a train or test step: unpack this rank's part, count its rows, average what it reports."""
        runtime = self._runtime
        trains = step_function.__name__ == "train_step"
        if trainer.jit_compile:
            trainer._jit_compile = False  # XLA has no allreduce on CPUs
        training = TrainerStep(trainer=trainer, written=step_function)
        if trains:  # what was found out belongs to another compilation, perhaps with another loss
            runtime.collectives.trial.mixing.discard(trainer)
            self._trainings.pop(trainer, None)

        def step(data: Any) -> Any:
            return self._step(training, data)

        step.__name__ = step_function.__name__

        def compiled() -> Callable[..., Any]:
            return cast(Callable[..., Any], original(trainer, step))

        has_own_test = type(trainer).test_step is not TensorFlowTrainer.test_step
        probed = runtime.sync.shares_gradients and not runtime.witness.is_witness and not self._asks_for_rows(trainer)
        function = self._probed(training, compiled) if probed and (trains or has_own_test) else compiled()
        if probed and trains:
            self._trainings[trainer] = weakref.ref(training)  # which holds the trainer

        def observed(iterator: Any) -> Any:
            logs = runtime.witness.numbers(step_function.__name__, function(iterator))
            if trains:
                runtime.witness.state(step_function.__name__)
            return logs

        return observed

    def _step(self, training: "TrainerStep", data: Any) -> Any:
        """Make a step of a rank's part of a batch, while its graph is built or eagerly."""
        runtime = self._runtime
        trainer = training.trainer
        rows = place = None
        if isinstance(data, BatchShare):
            data, rows, place = data
        elif runtime.own_rows.present or trainer in self._whole:
            rows = tf.cast(length(leading(data)), tf.float32) * runtime.rows.default
            place = None if runtime.own_rows.present else (0, 0)
        present_rows = length(leading(data))
        trial = runtime.collectives.trial
        if trainer in trial.mixing:
            with runtime.rows.batch_of(rows), runtime.trainer():
                data = rows_of_all_ranks(runtime, data, "batch")
            rows = tf.cast(length(leading(data)), tf.float32) * float(runtime.world.rank == 0)
            present_rows = 0
        with runtime.rows.batch_of(rows, present_rows, place), runtime.trainer(), trial.of(training):
            return self._scalars.average(training.written(data), training, training.written.__name__)

    def _probed(self, training: "TrainerStep", compiled: Callable[[], Any]) -> Callable[..., Any]:
        """Return the compiled step; before its first batch of every data set the step as written is probed.

        It is probed again where that is due.
        """
        trainer = training.trainer
        function = compiled()

        def probed_step(iterator: Any) -> Any:
            nonlocal function
            is_new = self._source not in training.sources and may_sum(trainer)
            is_due = self.steps_until_probe(trainer) < trainer.steps_per_execution
            if not (is_new or is_due) or isinstance(iterator, (Made, Ended)):
                return function(iterator)
            try:
                data = next(iterator)  # a generator in `train_on_batch`
            except tf.errors.OutOfRangeError as end:
                raise StopIteration from end
            if is_new:
                was_traced = bool(training.sources)
                training.sources.add(self._source)
                if self._probe(training, data) and was_traced:
                    function = compiled()
            elif is_due:
                self.probe_again(trainer, data)
            batches = [data, *islice(iterator, trainer.steps_per_execution - 1)]
            if not isinstance(iterator, tf.data.Iterator):
                return function(iter(batches))
            with self._runtime.trainer():  # batches of the same kind: another trace would draw its first numbers again
                dataset = iterator._dataset.take(0)
                for batch in reversed(batches):
                    dataset = tf.data.Dataset.from_tensors(batch).concatenate(dataset)
                return function(iter(dataset))

        def step(iterator: Any) -> Any:
            logs = probed_step(iterator)
            training.times.steps += iterator.steps if isinstance(iterator, Made) else trainer.steps_per_execution
            return logs

        return step

    def _training_of(self, trainer: Any) -> "TrainerStep | None":
        """Return the training step of `trainer` that was compiled last, if it is probed."""
        reference = self._trainings.get(trainer)
        return None if reference is None else reference()

    def steps_until_probe(self, trainer: Any) -> int:
        """Return how many training steps of divided batches may be made before one that is to be probed again."""
        runtime = self._runtime
        training = self._training_of(trainer)
        is_whole = trainer in runtime.collectives.trial.mixing or trainer in self._whole
        if training is None or is_whole or runtime.own_rows.present or not runtime.compares_with_one_process:
            return sys.maxsize
        if not training.sources:  # all of it is Keras's own
            return sys.maxsize
        return training.times.steps_until

    def probe_again(self, trainer: Any, data: Any) -> None:
        """Probe the next training step, of a rank's part of the batch `data`, again; all ranks together.

        Raises:
            UserError: it mixes rows now.
        """
        training = self._training_of(trainer)
        assert training is not None
        step = training.times.steps + 1
        training.times.note_probe()
        if not self._independent(training, data, again=True):
            self._runtime.refuse_mixed(step)

    def _independent(self, training: "TrainerStep", data: Any, *, again: bool) -> bool:
        """Tell whether rows are independent in a step, from a rank's part of a batch."""
        runtime = self._runtime
        trial = runtime.collectives.trial
        seeds = [state for state in runtime.variables.seeds if initialised([state])]
        with runtime.quietly(), runtime.trainer(), undrawn([*runtime.variables.untrained, *seeds]), trial.of(training):
            return probe_trainer(
                trial,
                training.trainer,
                training.written,
                data.data if isinstance(data, BatchShare) else data,
                partial(runtime.collectives.gather, label="trial"),
                runtime.variables.of_script,
                again=again,
            )

    def _probe(self, training: "TrainerStep", data: Any) -> bool:
        """Find out what a step makes of a batch and of its parts; tell whether it must be compiled again."""
        runtime = self._runtime
        trainer = training.trainer
        trial = runtime.collectives.trial
        was_mixing = trainer in trial.mixing
        if not self._independent(training, data, again=False):
            trial.mixing.add(trainer)
            runtime.compute_whole(trial.why_whole)
        elif training.written.__name__ == "train_step":
            trial.mixing.discard(trainer)
        return was_mixing != (trainer in trial.mixing)

    def _fit(self, original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Train: the ranks begin with equal weights and show at the end that they are equal."""
        runtime = self._runtime
        if runtime.in_trainer:
            return original(trainer, *args, **kwargs)
        if trainer.distribute_strategy.num_replicas_in_sync > 1 or tf.distribute.has_strategy():
            raise UserError(
                "the script makes a tf.distribute strategy of its own: leave it out, the ranks take its place"
            )
        self._refuse_threads()
        self._end_trial()
        self._begin(trainer)
        compare(runtime, model_facts(trainer.optimizer, trainer.variables))
        if trainer.built:
            runtime.variables.start_equal(trainer.variables, "initial weights")
        call = inspect.signature(original).bind(trainer, *args, **kwargs)
        call.arguments["callbacks"] = Agreement.added(call.arguments.get("callbacks"), runtime, trainer)
        try:
            with runtime.trainer(), self._divided_or_whole(trainer), self._of(call.arguments):
                history = original(*call.args, **call.kwargs)
        finally:
            self._fitting = None
        runtime.variables.remember(trainer.weights)
        runtime.verify()
        return history

    def _begin(self, trainer: Any) -> None:
        """Meet the witness where a training begins; where none has come, every rank takes whole batches of it."""
        if trainer.train_function is not None:
            return
        self._runtime.witness.meet()
        if not self._runtime.begin_judged():
            self._unjudged.add(trainer)

    def _refuse_threads(self) -> None:
        """End all ranks where another thread trains at the moment: the ranks' exchanges have no order then."""
        thread = threading.get_ident()
        if self._fitting not in (None, thread):
            abort(
                self._runtime.world,
                UserError(
                    f"the script trains in several threads at once ({script_place()}), which run in another order on "
                    "every rank: train one model after the other, or run it with -n 1"
                ),
            )
        self._fitting = thread

    def _evaluate(self, original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        self._end_trial()
        call = inspect.signature(original).bind(trainer, *args, **kwargs)
        with self._runtime.trainer(), self._divided_or_whole(trainer), self._of(call.arguments):
            return original(trainer, *args, **kwargs)

    @contextlib.contextmanager
    def _of(self, arguments: Mapping[str, Any]) -> Iterator[None]:
        """Within the block, steps are of the data set in the `arguments` of `fit` or `evaluate`."""
        outer = self._source
        self._source = tuple(id(arguments.get(name)) for name in ("x", "y"))
        try:
            yield
        finally:
            self._source = outer

    def _divided_or_whole(self, trainer: Any) -> AbstractContextManager[None]:
        """Have every rank take whole batches within the block if the model asks for a number of rows."""
        why = self._asks_for_rows(trainer)
        if why:
            self._runtime.compute_whole(why)
        elif trainer not in self._unjudged:
            return contextlib.nullcontext()
        return switched_on(self._runtime.undivided)

    def _asks_for_rows(self, trainer: Any, rows: int = 0) -> str:
        """Return why a model, or a batch of `rows` rows, cannot be divided; an empty text where it can."""
        if trainer not in self._asked:  # only once: a Sequential takes its first batch's size for its input's
            self._asked[trainer] = next(filter(None, map(fixed_rows, trainer._flatten_layers())), "")
        size = self._runtime.ranks  # in the witness too, which then compiles the step anew where the ranks do
        uneven = f"a batch of {rows} rows has no equal parts for {size} ranks" if rows % size else ""
        return self._asked[trainer] or uneven

    def _predict(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Predict everything on every rank: a script goes on with all of the predictions."""
        is_of_script = not self._runtime.in_trainer
        with self._runtime.trainer(), self._runtime.quietly():
            predictions = original(*args, **kwargs)
        if is_of_script:
            self._runtime.witness.arrays("predict", predictions)
        return predictions

    def _on_batch(
        self,
        original: Callable[..., Any],
        trainer: Any,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Divide a batch that the script feeds by hand; it is the batch of all ranks, whatever `--batch` says."""
        runtime = self._runtime
        part = () if runtime.loop is None else tf.nest.flatten(runtime.loop.part)
        part_ids = {id(leaf) for leaf in part if leaf is not None}
        if any(id(leaf) in part_ids for leaf in tree.flatten((x, y))):
            raise UserError(
                "the script gives train_on_batch or test_on_batch a batch of a loop that makes steps of its own too, "
                "where batches are divided already: give each a loop of its own"
            )
        x, y, sample_weight = tree.map_structure(
            lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), (x, y, sample_weight)
        )
        if not runtime.own_rows.present and trainer not in self._whole:
            self._begin(trainer)
            why = self._asks_for_rows(trainer, int(length(leading(x))))
            if why:
                runtime.compute_whole(why)
            if why or trainer in self._unjudged:
                self._whole.add(trainer)
                trainer.make_train_function(force=True)  # the one before was traced for parts
                trainer.make_test_function(force=True)
            else:
                x, y, sample_weight = divide((x, y, sample_weight), runtime.world.rank, runtime.world.size).data
        with runtime.trainer(), runtime.rows.batch_of(None):
            return original(trainer, x, y, sample_weight, **kwargs)


def may_sum(trainer: Any) -> bool:
    """Tell whether a model may have sums over rows, or mix them: only parts that are Keras's own surely do not."""
    if not is_keras_object(type(trainer)) or any(
        getattr(loss, "reduction", "mean") in (None, "none") for loss in tree.flatten(trainer.loss)
    ):
        return True
    layers = [*trainer._flatten_layers(include_self=False)]
    parts = [part for layer in (trainer, *layers) for part in getattr(layer, "operations", ())]
    return any(
        not is_keras_object(type(part))
        or along_rows(part)
        or isinstance(part, keras.layers.Lambda)
        or getattr(part, "activity_regularizer", None)
        for part in (*layers, *parts)
    )


def fixed_rows(layer: Any) -> str:
    """Return why a layer takes a fixed number of rows; an empty text where it does not."""
    shape = getattr(layer, "batch_shape", None)
    if getattr(layer, "stateful", False):
        return f"layer '{layer.name}' keeps the states of a batch's rows for the next batch"
    if type(layer).__name__ == "InputLayer" and shape is not None and shape[0] is not None:
        return f"input '{layer.name}' takes exactly {shape[0]} rows"
    return ""


_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class Agreement(keras.callbacks.Callback):
    """Comes after the script's own callbacks: the other ranks take over what those of rank 0 have decided.

    It has no method for batches: with such a method, Keras would read every step's losses back from the device.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    @classmethod
    def added(cls, callbacks: Any, runtime: Runtime, trainer: Any) -> Any:
        """Return `callbacks` as `fit` takes them, with an agreement after them."""
        is_list = isinstance(callbacks, keras.callbacks.CallbackList)
        listed = callbacks.callbacks if is_list else callbacks
        script_callbacks = keras.tree.flatten(listed) if listed else []
        at_batches = runtime.signals.awaited or any(_sees_batches(callback) for callback in script_callbacks)
        agreement = BatchAgreement(runtime) if at_batches else cls(runtime)
        if is_list:
            agreement.set_model(trainer)
            callbacks.append(agreement)
            return callbacks
        return [*script_callbacks, agreement]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compare the number of steps: a rank with fewer of them would leave the others waiting."""
        compare(self._runtime, {"steps per epoch": str(self.params.get("steps"))})

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Take over the learning rate that rank 0's callbacks have set."""
        self._agree_on_rate_and_stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the weights where that is due, agree to stop, take over the learning rate, compare weights."""
        self._runtime.variables.average(self.model.weights)
        self._runtime.signals.meet()
        self._agree_on_rate_and_stop()
        every = self._runtime.settings.verify
        if every and (epoch + 1) % every == 0:
            self._runtime.variables.remember(self.model.weights)
            self._runtime.verify()

    def _agree_on_rate_and_stop(self) -> None:
        """Stop where rank 0's callbacks stop, and train at its learning rate, which may follow from its own clock."""
        optimizer = self.model.optimizer
        rate = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
        number = float(rate.numpy()) if isinstance(rate, keras.Variable) else None
        decided = (self.model.stop_training, number)
        self.model.stop_training, agreed_number = self._runtime.collectives.gather(decided, "stop, learning rate")[0]
        if agreed_number != number and isinstance(rate, keras.Variable):
            rate.assign(agreed_number)


class BatchAgreement(Agreement):
    """For scripts with callbacks of their own that see batches."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Stop together when a callback of the script's own, or a signal, stops in the middle of an epoch."""
        self._runtime.signals.meet()
        self._agree_on_rate_and_stop()


def _sees_batches(callback: Any) -> bool:
    """Tell whether a callback of the script's own may stop in the middle of an epoch; Keras's own do so at its end."""
    if isinstance(callback, keras.callbacks.LambdaCallback):
        return True
    # The object's methods, not its class's: a script may set one on the object.
    if type(callback).__module__.startswith("keras."):
        return any(name in vars(callback) for name in _BATCH_HOOKS)
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(keras.callbacks.Callback, name)
        for name in _BATCH_HOOKS
    )
