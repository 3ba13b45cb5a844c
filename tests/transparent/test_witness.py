"""A process beside the ranks trains undivided: mistakes of the division end at their step, healthy scripts do not."""

import random
import re
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from harness.base.cores import usable_cores
from harness.transparent.observations import Observation, compared, measures
from harness.transparent.witness import NoWitness
from tests.mpi.launch import PROGRAMS, run_ranks
from tests.scripts.corpus import HEAD, scripts

FIT = (
    HEAD
    + """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss='mse', metrics=['mae'])
report(losses=model.fit(x, r, batch_size=50, epochs=2, verbose=0).history['loss'])
"""
)
LOOP = scripts()["loop-mean-compiled"].source
DYING = f"import os\nif os.environ.get('TF_ENABLE_ONEDNN_OPTS') == '0': os._exit(3)  # a second witness\n{LOOP}"
MISTAKES = {
    "half-scale": (FIT, 1, "gradient"),
    "metric-twice": (FIT, 1, "number"),
    "doubled-weight": (DYING, 2, "gradient"),
    "dropped-row": (LOOP, 2, "gradient"),
}  # the first step of a loop is whole


def planted(mistake, source, folder):
    """Run `source` with a mistake of the division; return what came of it, and what was found: step, what, line."""
    (folder / "script.py").write_text(source)
    words = (PROGRAMS / "planted_division.py", mistake, "--batch", "global", "--threads", 1, "script.py")
    finished = run_ranks(2, *words, cwd=folder, timeout=240)
    sentence = r"harness: rank 0: in step (\d+) the (.*) \(script.py, line (\d+)\): divided over ranks"
    return finished, re.findall(sentence, finished.stderr)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_the_division_ends_the_launch_at_its_step_and_line(mistake, tmp_path):
    source, step, kind = MISTAKES[mistake]
    finished, [(found, what, line)] = planted(mistake, source, tmp_path)
    assert finished.returncode == 2, finished.stderr[-3000:]
    assert (int(found), what.split()[0]) == (step, kind)
    assert ("model.fit(" if source is FIT else "step(") in source.splitlines()[int(line) - 1]
    assert "RESULT" not in finished.stdout


EVEN = ("fit-arrays-even", "free-on-batch", "model-cnn-norm")
UNEVEN = ("fit-dataset", "fit-weights", "fit-eagerly", "step-mean", "loop-mean-compiled", "loop-adam-eager")
SPARSE = ("model-text-mean", "free-embedding")
METRICS = ("fit-arrays-even", "fit-metric-Precision", "loop-metrics-compiled", "loop-metrics-eager")
SUITED = {
    "doubled-weight": UNEVEN,
    "number-twice": ("step-mean", "loop-mean-compiled", "free-embedding"),
    "swapped-order": ("fit-dataset", "free-on-batch", "loop-mean-compiled", "loop-adam-eager", "free-embedding"),
    "own-statistics": ("model-cnn-norm", "drawn-dropout-normalised", "model-cnn-renorm"),  # in loops the probe sees it
    **dict.fromkeys(("half-scale", "one-percent"), EVEN),
    **dict.fromkeys(("metric-twice", "metric-own"), METRICS),
    **dict.fromkeys(("sparse-shifted", "sparse-sum"), SPARSE),
    **dict.fromkeys(("dropped-row", "doubled-row", "same-rows", "unequal-start"), (*EVEN, *UNEVEN, *SPARSE)),
    **dict.fromkeys(
        ("lost-gradient", "lost-last", "rank-twice", "rank-lost", "sign", "turned", "stale-gradient"), (*EVEN, *UNEVEN)
    ),
}


@pytest.mark.mpi
@pytest.mark.campaign
def test_thirty_mistakes_drawn_by_lot_are_found(tmp_path):
    """Print the step in which each is found."""
    known, lost = scripts(), []
    pairs = [(mistake, name) for mistake, names in SUITED.items() for name in names]
    for mistake, name in random.Random(35).sample(pairs, 30):
        folder = tmp_path / f"{mistake}-{name}"
        folder.mkdir()
        finished, found = planted(mistake, known[name].source, folder)
        last = (finished.stderr.strip().splitlines() or [""])[-1]
        step, what, _ = found[0] if found else ("", f"exit code {finished.returncode}: {last}", "")
        print(f"{mistake:16}{name:32}{step:>4}  {what}", flush=True)
        lost += [] if found else [(mistake, name)]
    assert not lost


HEALTHY = (
    "model-dropout",
    "model-noise",
    "loop-healthy-dropout-compiled",
    "loop-healthy-dropout-eager",
    "loop-healthy-noise-compiled",
    "loop-healthy-normalised-compiled",
    "trap-variational",
    "take-shuffled",
    *(name for name in scripts() if name.startswith("drawn-")),
)


@pytest.mark.mpi
@pytest.mark.campaign
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_script_ends_well_whatever_its_seed(name, tmp_path):
    """Print how many gradients the witness has judged of each seed's training, or why none."""
    for seed in range(1, 6):
        source = scripts()[name].source.replace("set_random_seed(1)", f"set_random_seed({seed})")
        (tmp_path / "script.py").write_text(source)
        words = ("-m", "harness.transparent", "--batch", "global", "--threads", 1, "script.py")
        finished = run_ranks(2, *words, cwd=tmp_path, timeout=240)
        told = [line for line in finished.stderr.splitlines() if "witness" in line]
        print(f"{name:34}{seed} {finished.returncode} {' '.join(told)[:160]}", flush=True)
        assert finished.returncode == 0, finished.stderr[-3000:]


@pytest.mark.mpi
@pytest.mark.slow
def test_a_batch_per_rank_is_compared_with_as_many_batches_of_the_script(tmp_path):
    """On the cores of both ranks, each of which has its own: the launch waits for it. Weights need no seed."""
    drawn = "model.set_weights([np.random.RandomState().randn(*v.shape) for v in model.get_weights()])\nmodel.compile"
    cores = "import os\nprint('CORES', *sorted(os.sched_getaffinity(0)), flush=True)\n"
    (tmp_path / "script.py").write_text(cores + FIT.replace("model.compile", drawn))
    words = (sys.executable, "-m", "harness", "run", "-n", "2", "--witness", "all", "script.py")
    finished = subprocess.run(words, cwd=tmp_path, timeout=240, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "had the same gradients and numbers in its first 6 steps" in finished.stderr
    logs = (
        finished.stdout,
        *((tmp_path / "harness-logs" / f"{name}.log").read_text() for name in ("rank-1", "witness")),
    )
    first, second, both = ({*re.search("CORES (.*)", log)[1].split()} for log in logs)
    assert both == first | second
    assert not first & second or usable_cores() < 2


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "int32", "int64", "normal", "dropout"])
def test_a_rank_draws_its_rows_part_of_what_one_process_draws(kind, monkeypatch):
    import tensorflow as tf
    from tensorflow.python.ops import gen_stateless_random_ops_v2 as room

    from harness.transparent.draws import ScriptDraws
    from harness.transparent.rows import Place

    def drawn(rows):
        shape, seed = (rows, 3, 5), (7, 9)
        if kind == "dropout":
            return tf.nn.experimental.stateless_dropout(tf.ones(shape), 0.5, seed)
        if kind == "normal":
            return tf.random.stateless_normal(shape, seed)
        return tf.random.stateless_uniform(shape, seed, 0, 100, kind)

    whole, compiled = drawn(10), tf.function(drawn)
    place = Place(4, 3, 10, 3)
    rows, world = SimpleNamespace(place=lambda: place), SimpleNamespace(rank=1)
    runtime = SimpleNamespace(rows=rows, world=world, witness=NoWitness(), loop=True, in_trainer=False)
    for name in ("stateless_random_uniform_v2", "stateless_random_normal_v2", "stateless_random_uniform_int_v2"):
        monkeypatch.setattr(room, name, partial(ScriptDraws(runtime)._by_place, getattr(room, name)))
    np.testing.assert_array_equal(drawn(3), whole[4:7])
    place = Place(tf.constant(6), tf.constant(4), tf.constant(10), None)  # known when it runs
    np.testing.assert_array_equal(compiled(tf.constant(4)), whole[6:])


def gradient(*parts):
    return Observation("gradient", tuple("abcdefgh"[: len(parts)]), np.array([measures(*part) for part in parts]))


def test_a_difference_is_found_among_rounding():
    """Twice as much, and one row of 64 less; not a gradient that is nothing but rounding, nor another order of rows."""
    rng = np.random.default_rng(0)
    rows, index = rng.standard_normal((64, 300)).astype("f4"), rng.integers(0, 9, 64)
    noise = 1e-6 * rng.standard_normal((2, 40)).astype("f4")
    whole = gradient([rows.mean(0)], [rows, index], [noise[0]])
    order = rng.permutation(64)
    assert compared(whole, gradient([rows[order].mean(0)], [rows[order], index[order]], [noise[1]]))[0] < 1e-5
    assert compared(whole, gradient([2 * rows.mean(0)], [rows, index], [noise[0]]))[1] == "a"
    apart, name = compared(whole, gradient([rows[:-1].mean(0)], [rows, index], [noise[0]]))
    assert name == "a"
    assert 0.01 < apart < 1
    apart, name = compared(whole, gradient([rows.mean(0)], [rows, (index + 1) % 9], [noise[0]]))
    assert name == "b"
    assert apart > 0.1
    gone, rounded = gradient([noise[0]]), gradient([noise[1]])
    assert compared(gone, rounded)[0] > 1
    assert compared(gone, rounded, least=0.1)[0] < 1e-3


def test_what_a_session_reads_while_it_is_written_is_not_compared():
    """TensorFlow reads a count of steps before or after the same run raises it; a loss follows from what is fed."""
    from harness.transparent.tf1 import _kinds

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        inputs = v1.placeholder(tf.float32, [None, 1])
        loss = tf.reduce_mean(inputs @ v1.get_variable("kernel", [1, 1]))
        step = v1.train.get_or_create_global_step()
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        assert "fed" in _kinds(loss.op, set()) and "fed" in _kinds(train, set())
        assert "fed" not in _kinds(tf.convert_to_tensor(step).op, set())


def test_numbers_that_overflow_alike_are_equal_and_others_are_not():
    def number(value):
        return Observation("number", ("loss",), np.array([[value]]))

    assert compared(number(np.nan), number(np.nan))[0] == 0
    assert compared(number(np.inf), number(np.inf))[0] == 0
    assert compared(number(np.nan), number(1.0))[0] == np.inf
    assert compared(number(1.0), number(1.02))[0] == pytest.approx(0.02 / 1.02)
