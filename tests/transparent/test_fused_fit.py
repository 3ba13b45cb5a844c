"""Fused steps of Keras's `fit`: they train as single ones do, in Keras's own order, and stop where something looks."""

import contextlib
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from harness.schema.record import read_run
from harness.transparent.divided_keras_data import array_sources
from harness.transparent.fused.fused_arrays import FusedArrays, is_repeated, row_orders
from harness.transparent.fused.fused_fit import (
    AgreedSteps,
    FusedCount,
    FusedFit,
    FusingRanks,
    StepPace,
    batch_watcher,
    is_plain,
    lean_update,
    steps_to_save,
    unfit,
)
from tests.labs.thread_ranks import Gathering
from tests.mpi.launch import PROGRAMS, run_ranks, warm_python

SAME = {"arrays", "momentum", "weighted", "cut", "bundled", "dataset", "endless", "unknown", "own step", "saved"}
"""Cases whose sums are made in one order in single and in fused steps: the results are equal bit for bit."""
ALONE = """
import runpy, sys
from harness.transparent.install import fuse_alone
from harness.transparent.run_settings import RunSettings
fuse_alone(RunSettings(fuse="always"))
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


SOME = ("arrays", "partial", "unknown", "own step")


def check_cases(output, count):
    """Compare what the program has printed of single and of fused steps in so many cases."""
    cases = [json.loads(line[5:]) for line in output.splitlines() if line.startswith("CASE ")]
    assert len(cases) == count
    for case in cases:
        limit = 0.0 if case["name"] in SAME else 1e-5
        assert case["weights"] <= limit, case
        assert case["logs"] <= max(limit, 1e-6), case
        assert case["epochs"] == ([2, 2] if case["name"] == "saved" else [3, 3]), case


@pytest.mark.mpi  # ranks meet in every step's sums
@pytest.mark.slow
def test_two_ranks_train_alike_in_single_and_in_fused_steps(tmp_path):
    switches = ("--batch", "global", "--threads", 1, "--fuse", "always", "--unjudged", "--record", "record")
    words = ("-m", "harness.transparent", *switches)
    finished = run_ranks(2, *words, PROGRAMS / "fused_fits.py", cwd=tmp_path, timeout=280)
    assert finished.returncode == 0, finished.stderr[-3000:]
    check_cases(finished.stdout, 12)
    record = read_run(tmp_path / "record")
    steps = sum(epoch.steps for epoch in record.epochs)
    assert 0.3 * steps < record.fused_steps < 0.5 * steps  # half of the trainings are watched


@pytest.mark.slow  # Python and TensorFlow start anew
def test_one_rank_trains_alike_in_single_and_in_fused_steps(tmp_path):
    words = [warm_python(), "-c", ALONE, PROGRAMS / "fused_fits.py", *SOME]
    finished = subprocess.run(
        list(map(str, words)), cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    check_cases(finished.stdout, len(SOME))


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_rows_of_an_epoch_come_in_the_order_of_kerass_own_adapter(shuffle):
    """Epoch by epoch, whichever way the steps are made."""
    tf.random.set_seed(3)
    numbers = np.arange(23)
    adapter = ArrayDataAdapter(numbers, batch_size=5, shuffle=shuffle)
    expected = adapter.get_tf_dataset()
    arrays = FusedArrays(array_sources(adapter), row_orders(23, 5, shuffle), 23, 5, 0, 1)
    for _ in range(3):
        order = [int(number) for batch in expected for number in keras.tree.flatten(batch)[0]]
        arrays.shuffle()
        assert [int(number) for batch in arrays.index_batches() for number in batch] == order
        stretches = [numbers for numbers, _ in arrays.stretches(0, arrays.steps)]
        assert [number for stretch in stretches for number in stretch.ravel()] == order
        assert [stretch.shape for stretch in stretches] == [(4, 5), (1, 3)]
    assert is_repeated(row_orders(23, 5, shuffle))
    assert row_orders(23, 5, "batch") is None


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_ranks_have_each_row_of_a_stretch_once(size):
    """A rank without rows of a batch has one that counts for none."""
    ranks = [FusedArrays(None, row_orders(23, 5, False), 23, 5, rank, size) for rank in range(size)]
    parts = [list(arrays.stretches(1, 99)) for arrays in ranks]
    for number, expected in enumerate((range(5, 20), range(20, 23))):
        counted = []
        for numbers, share in (part[number] for part in parts):
            rows = numbers.shape[1] if share.rows is None else int(share.rows)
            counted += [int(row) for row in numbers[:, :rows].ravel()]
        assert sorted(counted) == list(expected)


class CountedLoops:
    """Loops that make no step and keep how many each execution was to make."""

    single, traced, lean = 0, False, False

    def __init__(self):
        self.counts = []

    def prepare_arrays(self, arrays):
        return ""

    def over_arrays(self, arrays, first, count):
        self.counts.append(count)
        return count, {"loss": tf.constant(0.0)}


def test_all_ranks_make_as_many_steps_in_an_execution_whatever_their_clocks_say():
    """A rank that made fewer would leave the loop, and wait elsewhere than the others."""
    meeting = Gathering(2)

    def run(rank):
        gather, loops = meeting.at(rank), CountedLoops()
        ranks = FusingRanks(
            agree=lambda value: gather(value, "number of steps")[0],
            settled=lambda: True,
            body=lambda _: contextlib.nullcontext(),
            note=lambda _: None,
            divided=True,
        )
        fit = FusedFit(
            trainer=SimpleNamespace(steps_per_execution=1, variables=[]),
            ranks=ranks,
            count=FusedCount(),
            epochs=2,
            always=True,
            callbacks=(),
            steps=lambda: loops,
            arrays=SimpleNamespace(shuffle=lambda: None),
        )
        adapter = SimpleNamespace(on_epoch_begin=lambda: None, on_epoch_end=lambda: None)
        iterator = SimpleNamespace(
            data_adapter=adapter,
            steps_per_epoch=None,
            _num_batches=1000,
            _current_iterator=None,
            _steps_seen=0,
            _get_iterator=lambda: [],
        )
        for _ in range(2):
            for _ in fit.epoch(iterator):
                time.sleep(0.001 + 0.003 * rank)
        return loops.counts

    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(run, range(2)))
    assert counts[0] == counts[1]
    assert sum(counts[0]) == 1999


def test_what_looks_at_batches_is_seen():
    class Own(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            pass

    patched = keras.callbacks.Callback()
    patched.on_train_batch_begin = lambda batch, logs=None: None
    kinds = keras.callbacks
    watching = [Own(), patched, kinds.LambdaCallback(on_train_batch_end=print), kinds.TerminateOnNaN()]
    assert all(batch_watcher([callback]) for callback in watching)
    coarse = [kinds.EarlyStopping(), kinds.ModelCheckpoint("x.keras"), kinds.CSVLogger("x"), kinds.ProgbarLogger()]
    assert not batch_watcher([*coarse, kinds.TensorBoard(), kinds.LambdaCallback(on_epoch_end=print)])
    assert batch_watcher([kinds.TensorBoard(update_freq="batch")])


def test_steps_whose_operations_keep_what_they_have_drawn_are_not_fused():
    drawing = tf.function(lambda: tf.nn.dropout(tf.ones([3]), 0.5)).get_concrete_function()
    seeded = tf.function(lambda: tf.random.stateless_uniform([3], [1, 2])).get_concrete_function()
    assert "RandomUniform" in unfit(drawing.graph)
    assert not unfit(seeded.graph)


# Executions of fused steps: how long they are, and when the ranks agree on it.


def test_an_execution_takes_between_20_and_100_ms():
    pace = StepPace()
    for step_s, steps in ((0.0001, 800), (0.001, 80), (0.04, 2), (0.045, 2), (0.07, 1), (3.0, 1)):
        pace.timed(10, 10 * step_s)
        assert pace.steps == steps


def test_ranks_agree_after_more_and_more_executions():
    """Their clocks tell most in the beginning."""
    asked = []
    steps = AgreedSteps(agree=lambda value: asked.append(value) or (7, None))
    pace = StepPace(step_s=0.01)
    assert [steps.next_count(pace, (), grain=2, begins=False) for _ in range(64)] == [7] * 64
    assert asked == [(8, None)] * 8  # before executions 1, 2, 4, 8, 16, 32, 48, 64


def test_executions_end_where_rank_0_saves_the_model_within_an_epoch():
    saving = keras.callbacks.ModelCheckpoint("x.keras", save_freq=10)
    steps = AgreedSteps(agree=lambda value: value)
    counts = []
    for _ in range(6):
        counts.append(steps.next_count(StepPace(step_s=0.01), [saving], grain=2, begins=False))
        steps.made(counts[-1])
        saving._should_save_on_batch(sum(counts) - 1)
    assert counts == [8, 2, 8, 2, 8, 2]


def test_a_checkpoint_within_an_epoch_ends_an_execution():
    saving = keras.callbacks.ModelCheckpoint("x.keras", save_freq=10)
    assert steps_to_save([saving, keras.callbacks.ModelCheckpoint("y.keras")]) == 10
    saving._should_save_on_batch(3)
    assert steps_to_save([saving]) == 6
    assert steps_to_save([keras.callbacks.EarlyStopping()]) is None


# Many steps in one compiled loop: only of steps that are Keras's own, and to the same weights.


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


def test_a_model_with_a_step_of_its_own_is_not_plain():
    assert is_plain(keras.Sequential([keras.layers.Dense(1)]))
    assert not is_plain(OwnStep())
    patched = keras.Sequential([keras.layers.Dense(1)])
    vars(patched)["compute_loss"] = lambda *_: 0.0
    assert not is_plain(patched)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_the_update_in_one_operation_comes_to_keras_s_weights(momentum, nesterov):
    weights = []
    for lean in (False, True):
        optimizer = keras.optimizers.SGD(0.1, momentum=momentum, nesterov=nesterov)
        variable = keras.Variable([1.0, -2.0])
        optimizer.build([variable])
        for step in range(3):
            gradient = tf.constant([0.3, 0.7]) * (step + 1)
            if lean:
                with lean_update(optimizer):
                    optimizer.apply([gradient], [variable])
            else:
                optimizer.apply([gradient], [variable])
        weights.append(variable.numpy())
        assert "update_step" not in vars(optimizer)
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-6)


def test_operations_that_keep_what_they_have_drawn_are_unfit():
    drawing = tf.function(lambda: tf.random.uniform([3])).get_concrete_function()
    seeded = tf.function(lambda: tf.random.stateless_uniform([3], [1, 2])).get_concrete_function()
    assert unfit(drawing.graph)
    assert not unfit(seeded.graph)
