"""A process beside the ranks trains undivided: mistakes of the division end at their step, healthy scripts do not."""

import re

import numpy as np
import pytest

from harness.transparent.witness import Seen, compared, measures
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
MISTAKES = {
    "half-scale": (FIT, 1, "gradient"),
    "lost-gradient": (FIT, 1, "gradient"),
    "metric-twice": (FIT, 1, "number"),
    "doubled-weight": (LOOP, 7, "gradient"),
    "dropped-row": (LOOP, 7, "gradient"),
}  # the first six steps of a loop are whole


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_the_division_ends_the_launch_at_its_step(mistake, tmp_path):
    source, step, kind = MISTAKES[mistake]
    (tmp_path / "script.py").write_text(source)
    words = (PROGRAMS / "planted_division.py", mistake, "--batch", "global", "--threads", 1, "script.py")
    finished = run_ranks(2, *words, cwd=tmp_path, timeout=240)
    assert finished.returncode == 2, finished.stderr[-3000:]
    found = re.findall(r"harness: rank 0: in step (\d+) the (\w+) '.*?' is \S+ of its size away", finished.stderr)
    assert found == [(str(step), kind)]
    assert "RESULT" not in finished.stdout


@pytest.mark.mpi
@pytest.mark.slow
def test_a_batch_per_rank_is_compared_with_as_many_batches_of_the_script(tmp_path):
    (tmp_path / "script.py").write_text(FIT)
    words = ("-m", "harness.transparent", "--threads", 1, "--witness", "all", "script.py")
    finished = run_ranks(2, *words, cwd=tmp_path, timeout=240)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "had the same gradients and numbers in its first 6 steps" in finished.stderr


def gradient(*parts):
    return Seen("gradient", tuple("abc"), np.array([measures(*part) for part in parts]))


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


def test_numbers_that_overflow_alike_are_equal_and_others_are_not():
    def number(value):
        return Seen("number", ("loss",), np.array([[value]]))

    assert compared(number(np.nan), number(np.nan))[0] == 0
    assert compared(number(np.inf), number(np.inf))[0] == 0
    assert compared(number(np.nan), number(1.0))[0] == np.inf
    assert compared(number(1.0), number(1.02))[0] == pytest.approx(0.02 / 1.02)
