"""What is timed of a script's training, and the record that is made of it."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers import data_adapters

from harness.base.cpu_contention import CpuUsage
from harness.base.errors import SharedError, UserError
from harness.horovod import mpi_exchange
from harness.transparent import script_record
from harness.transparent.script_record import (
    EpochClock,
    FitObservations,
    ScriptEpoch,
    StepTimes,
    epoch_columns,
    epoch_record,
    gradients_of,
    known_tensors,
    split_arguments,
    write_record,
)
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed


def script_epoch(steps=3, calls=()):
    usage = CpuUsage.now()
    return ScriptEpoch(
        steps=steps,
        start=10.0,
        seconds=2.0,
        evaluate_s=0.0,
        calls=np.array(calls, float).reshape(-1, 2),
        logs={"loss": 0.5, "val_accuracy": 0.9},
        begin=usage,
        end=usage,
    )


def test_an_epochs_clock_stops_where_its_validation_begins(monkeypatch):
    moments = iter([10.0, 13.0, 13.0, 17.0])
    monkeypatch.setattr("harness.transparent.script_record.clock", lambda: next(moments))
    reduction = SimpleNamespace(take_calls=lambda: np.array([[11.0, 12.0]]))
    watch = EpochClock(lambda: (reduction,))
    watch.on_epoch_begin(0)
    watch.on_train_batch_end(4)
    watch.on_test_begin()
    watch.on_epoch_end(0, {"loss": 1})
    (epoch,) = watch.epochs
    assert (epoch.steps, epoch.start, epoch.seconds, epoch.evaluate_s) == (5, 10.0, 3.0, 4.0)
    assert epoch.calls.tolist() == [[1.0, 2.0]]
    assert epoch.logs == {"loss": 1.0}


class MeasuredFits:
    """`FitObservations` of the ranks of `runtime`."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.measured = FitObservations()

    def install(self):
        self.measured.install(self.runtime)


@pytest.fixture
def fits(monkeypatch):
    monkeypatch.setattr(script_record, "core_distance", lambda world: 0.0)
    return MeasuredFits(alike_runtime())


def test_the_rows_are_those_of_the_first_data_that_a_fit_asks_for(fits):
    fits.measured.awaiting = True
    with installed(fits):
        for rows in (100, 7):
            data_adapters.get_data_adapter(x=np.zeros(rows))
    assert fits.measured.rows == 100
    assert not fits.measured.awaiting


def test_a_loops_steps_are_epochs_of_its_batches():
    runtime = alike_runtime()
    measured = FitObservations(loop_epochs=lambda: [script_epoch(steps=3)])
    point = SimpleNamespace(scaling="strong", workload=SimpleNamespace(batch_per_rank=None, global_batch=8))
    measured.measure_loop(runtime, point, 2)
    assert (measured.batch, measured.rows) == (8, 8 * 3 * 2)


def test_a_script_that_has_made_no_step_has_no_record():
    seen = SimpleNamespace(fit=FitObservations())
    with pytest.raises(SharedError) as refused:
        write_record(None, None, seen, None)
    assert isinstance(refused.value.error, UserError)


def test_an_epochs_record_has_every_ranks_times_and_the_callbacks_numbers():
    record = epoch_record(1, script_epoch(), [(2.0, 0.5), (2.1, 0.4)], 4.0)
    assert record.seconds == (2.0, 2.1)
    assert record.sync_seconds == (0.5, 0.4)
    assert (record.train_loss, record.test_accuracy, record.test_loss) == (0.5, 0.9, None)
    assert record.begin_s == 6.0


@pytest.mark.parametrize("calls", [[], [[0.1, 0.2]] * 3])
def test_steps_have_times_of_calls_where_each_made_one(calls):
    columns = epoch_columns(1, 2, script_epoch(calls=calls))
    assert len(columns["step"]) == 3


def test_the_epochs_before_an_exception_are_those_of_a_fit_that_ended_early(fits, monkeypatch):
    remembered = []
    fits.runtime.variables.remember = remembered.append
    measured = fits.measured
    model = SimpleNamespace(
        trainable_variables=[SimpleNamespace(numpy=lambda: np.full(4, 2.0, np.float32))], weights=[]
    )

    def fit(self, x, y, callbacks=None):
        (watch,) = callbacks
        for epoch in range(3):
            watch.on_epoch_begin(epoch)
            watch.on_train_batch_end(4)
            if epoch == 2:
                raise KeyboardInterrupt
            watch.on_epoch_end(epoch, {"loss": 1.0})

    monkeypatch.setattr(TensorFlowTrainer, "fit", fit)
    with installed(fits), pytest.raises(KeyboardInterrupt):
        TensorFlowTrainer.fit(model, None, None)
    assert [epoch.steps for epoch in measured.epochs] == [5, 5]
    assert not measured.fitting and not measured.awaiting
    assert (measured.sizes, measured.length) == ((4, 16), 4.0)
    assert remembered == [[]]


# The steps of a script's own loop are timed at the optimizer.

NO_CALLS = np.empty((0, 2))


@pytest.fixture
def times(monkeypatch):
    monkeypatch.setattr(mpi_exchange, "calls", None)  # which the replacements set
    return StepTimes(lambda: False, lambda: NO_CALLS)


@pytest.fixture
def timed(times, monkeypatch):
    """Give what makes a step of an optimizer at each of some moments, and returns the epochs."""
    optimizer, variable = built_optimizer()

    def epochs_of(moments):
        remaining = iter(moments)
        monkeypatch.setattr(script_record, "clock", lambda: next(remaining))
        with installed(times):
            for _ in moments:
                optimizer.apply([tf.ones([1])], [variable])
        return times.epochs()

    return epochs_of


def built_optimizer():
    """Return an optimizer and the variable that it changes."""
    optimizer, variable = keras.optimizers.SGD(1.0), keras.Variable([1.0])
    optimizer.build([variable])
    return optimizer, variable


def test_two_steps_are_too_few(timed):
    assert timed([1.0, 2.0]) == []


def test_few_steps_are_one_epoch_after_the_one_that_compiles(timed):
    compiled, epoch = timed([0.0, 5.0, 6.0, 7.0])
    assert compiled.seconds == 0.0
    assert (epoch.steps, epoch.start, epoch.seconds) == (3, 0.0, 7.0)


def test_many_steps_are_four_epochs_and_the_first_ones_are_left_over(timed):
    _, *epochs = timed(np.arange(24.0))
    assert [epoch.steps for epoch in epochs] == [5] * 4
    assert epochs[0].start == 3.0
    assert epochs[-1].start + epochs[-1].seconds == 23.0


def test_an_epoch_has_the_exchanges_that_lie_in_it(times, timed, monkeypatch):
    timed([0.0, 1.0, 2.0, 2.2])
    monkeypatch.setattr(mpi_exchange, "calls", [(0.5, 0.6), (1.9, 2.1), (2.2, 2.3)])
    _, epoch = times.epochs()
    assert epoch.calls.tolist() == [[0.5, 0.6], [1.9, 2.1]]


def test_the_outermost_optimizers_step_is_noted_and_none_inside_of_fit(times):
    inner, variable = built_optimizer()
    scaler = keras.optimizers.LossScaleOptimizer(inner)
    scaler.build([variable])
    with installed(times):
        scaler.apply([tf.ones([1])], [variable])
    assert len(times.moments) == 1
    fitting = StepTimes(lambda: True, lambda: NO_CALLS)
    with installed(fitting):
        inner.apply([tf.ones([1])], [variable])
    assert fitting.moments == []


def test_a_compiled_step_is_noted_in_every_run(times):
    optimizer, variable = built_optimizer()

    @tf.function
    def step():
        optimizer.apply([tf.ones([1])], [variable])

    with installed(times):
        for _ in range(3):
            step()
    assert len(times.moments) == 3
    assert variable.numpy().tolist() == [-2.0]


def test_gradients_come_by_place_or_by_name():
    assert split_arguments(([1], "rest"), {}) == ([1], ("rest",), {})
    assert split_arguments((), {"grads": [1], "other": 2}) == ([1], (), {"other": 2})
    assert gradients_of([(1, "v"), 2]) == [1, 2]
    sparse = tf.IndexedSlices(tf.ones([1]), tf.constant([0]))
    assert len(known_tensors([(None, "v"), (sparse, "w")])) == 2
