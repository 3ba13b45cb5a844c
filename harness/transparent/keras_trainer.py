"""Keras 3's `fit` and its kin: every step knows its rows, every rank sees the same logs and stops at the same time."""

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from harness.base.errors import UserError
from harness.transparent.batch_coupling import TOLD, UNSURE
from harness.transparent.collectives import Scalars
from harness.transparent.gradient_probe import attempt
from harness.transparent.keras_layers import is_kerass, together
from harness.transparent.patch import replace
from harness.transparent.preflight import check_model
from harness.transparent.rows import BatchShare, EvenPart, divide, leading, length
from harness.transparent.runtime import Runtime


def install(runtime: Runtime, scalars: Scalars, end_trial: Callable[[], None]) -> None:
    """Replace `fit`, `evaluate`, `predict`, `train_on_batch`, `test_on_batch` and the maker of compiled steps."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    replace(TensorFlowTrainer, "_make_function", ("self", "step_function"), _steps(runtime, scalars))
    replace(TensorFlowTrainer, "fit", ("self", "x", "y", "batch_size", "epochs"), _fit(runtime, end_trial))
    replace(TensorFlowTrainer, "evaluate", ("self", "x", "y"), _evaluate(runtime, end_trial))
    replace(TensorFlowTrainer, "predict", ("self", "x"), _predict(runtime))
    for name in ("train_on_batch", "test_on_batch"):
        replace(TensorFlowTrainer, name, ("self", "x", "y", "sample_weight"), _on_batch(runtime))


def _steps(runtime: Runtime, scalars: Scalars) -> Callable[..., Any]:
    """Wrap a train or test step: unpack this rank's part, count its rows, average what it reports."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def make_function(trainer: Any, step_function: Callable[..., Any]) -> Any:
            if trainer.jit_compile:
                trainer._jit_compile = False  # XLA has no allreduce on CPUs

            plain = type(trainer).train_step is TensorFlowTrainer.train_step and _steps_with_keras(trainer.optimizer)

            def step(data: Any) -> Any:
                rows = None
                own = runtime.own_step() if plain else contextlib.nullcontext()
                if isinstance(data, (BatchShare, EvenPart)):
                    rows = data.rows if isinstance(data, BatchShare) else None
                    data = data.data
                if trainer in runtime.collectives.trial.mixing:
                    with runtime.rows.given(rows), runtime.trainer():
                        data = together(runtime, data, "batch")
                    rows = tf.constant(float(runtime.world.rank == 0))
                with runtime.rows.given(rows), runtime.trainer(), own:
                    return scalars.average(step_function(data), trainer)

            function = original(trainer, step)
            if step_function.__name__ != "train_step" or not runtime.sync.shares_gradients:
                return function
            return _tried(runtime, trainer, step_function, step, function)

        return make_function

    return make


def _steps_with_keras(optimizer: Any) -> bool:
    """Tell whether no class of the script's own, which may clip gradients, comes between them and the update."""
    while optimizer is not None and is_kerass(type(optimizer)):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer is None


def _tried(
    runtime: Runtime, trainer: Any, written: Callable[..., Any], step: Callable[..., Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the training function; before its first step comes the trial of what the script itself has `written`."""
    trial = runtime.collectives.trial

    def first(iterator: Any) -> Any:
        if not _may_sum(trainer) or not runtime.starts(trainer):
            return function(iterator)
        try:
            data = next(iterator)  # a generator in `train_on_batch`
        except tf.errors.OutOfRangeError as end:
            raise StopIteration from end
        with runtime.quietly(), runtime.trainer():
            gather = partial(runtime.collectives.gather, label="trial")
            part = data.data if isinstance(data, (BatchShare, EvenPart)) else data
            apart = attempt(trial, trainer, written, part, gather)
        if apart is False:
            trial.mixing.add(trainer)
        if not apart:
            runtime.note(UNSURE if apart is None else TOLD)
        single = step if trainer.run_eagerly else tf.function(step)
        outputs = single(data)
        for _ in range(trainer.steps_per_execution - 1):
            outputs = single(iterator.get_next())
        return outputs

    return first


def _may_sum(trainer: Any) -> bool:
    """Tell whether a model adds to its loss, or makes its steps, in a way of the script's own."""
    if not is_kerass(type(trainer)):
        return True
    layers = trainer._flatten_layers(include_self=False)
    return any(not is_kerass(type(layer)) or getattr(layer, "activity_regularizer", None) for layer in layers)


def _fit(runtime: Runtime, end_trial: Callable[[], None]) -> Callable[..., Any]:
    from harness.transparent.keras_callbacks import Agreement

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if runtime.in_trainer:
                return original(trainer, *args, **kwargs)
            if trainer.distribute_strategy.num_replicas_in_sync > 1 or tf.distribute.has_strategy():
                raise UserError(
                    "the script makes a tf.distribute strategy of its own: leave it out, the ranks take its place"
                )
            _refuse_states(trainer)
            end_trial()
            check_model(runtime, trainer)
            if trainer.built:
                runtime.start_equal(trainer.variables, "initial weights")
            given = inspect.signature(original).bind(trainer, *args, **kwargs).arguments
            given["callbacks"] = Agreement.added(given.get("callbacks"), runtime, trainer)
            with runtime.trainer():
                history = original(**given)
            runtime.remember(trainer.weights)
            runtime.verify()
            return history

        return fit

    return make


def _refuse_states(trainer: Any) -> None:
    """Refuse a model that asks for a number of rows.

    Raises:
        UserError: a layer keeps states from batch to batch, or an input has a fixed number of rows.
    """
    layers = list(trainer._flatten_layers())
    for layer in layers:  # first: a stateful layer needs the fixed number of rows
        if getattr(layer, "stateful", False):
            raise UserError(
                f"layer '{layer.name}' keeps the states of a batch's rows for the next batch (stateful=True), which "
                "cannot be divided over the ranks: leave stateful out"
            )
    for layer in layers:
        shape = getattr(layer, "batch_shape", None)
        if type(layer).__name__ == "InputLayer" and shape is not None and shape[0] is not None:
            raise UserError(
                f"input '{layer.name}' takes exactly {shape[0]} rows, which cannot be divided over the ranks: leave "
                "its batch size out"
            )


def _evaluate(runtime: Runtime, end_trial: Callable[[], None]) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            end_trial()
            with runtime.trainer():
                return original(trainer, *args, **kwargs)

        return evaluate

    return make


def _predict(runtime: Runtime) -> Callable[..., Any]:
    """Every rank predicts everything: a script goes on with all of the predictions."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def predict(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            with runtime.trainer(), runtime.quietly():
                return original(trainer, *args, **kwargs)

        return predict

    return make


def _on_batch(runtime: Runtime) -> Callable[..., Any]:
    """Divide a batch that the script feeds by hand, in either mode: it is the batch of all ranks."""
    size = runtime.world.size

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def on_batch(trainer: Any, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any) -> Any:
            from keras import tree

            x, y, sample_weight = tree.map_structure(
                lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), (x, y, sample_weight)
            )
            rows = int(length(leading(x)))
            if runtime.own.present:
                _refuse_uneven(runtime, rows)
            elif rows % size:
                raise UserError(
                    f"a batch of {rows} rows given to train_on_batch or test_on_batch cannot be divided over {size} "
                    f"ranks: use a multiple of {size}, or fit"
                )
            if not runtime.own.present:
                x, y, sample_weight = divide((x, y, sample_weight), runtime.world.rank, size).data
            with runtime.trainer(), runtime.rows.given(None):
                return original(trainer, x, y, sample_weight, **kwargs)

        return on_batch

    return make


def _refuse_uneven(runtime: Runtime, rows: int) -> None:
    found = runtime.collectives.gather(rows, "comparison of rows")
    if len(set(found)) > 1:
        raise UserError(
            f"the ranks give batches of {min(found)} to {max(found)} rows of their own to train_on_batch or "
            "test_on_batch: give equally many on all, or use fit"
        )
