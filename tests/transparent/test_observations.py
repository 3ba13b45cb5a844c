"""Rank 0 and the witness compare lengths and projections: a mistake shows among rounding."""

import numpy as np
import pytest

from harness.transparent.observations import Observation, compared, measures


def gradient(*parts):
    return Observation("gradient", tuple("abcdefgh"[: len(parts)]), np.array([measures(*part) for part in parts]))


def number(value):
    return Observation("number", ("loss",), np.array([[value]]))


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


def test_numbers_that_overflow_alike_are_equal_and_others_are_not():
    assert compared(number(np.nan), number(np.nan))[0] == 0
    assert compared(number(np.inf), number(np.inf))[0] == 0
    assert compared(number(np.nan), number(1.0))[0] == np.inf
    assert compared(number(1.0), number(1.02))[0] == pytest.approx(0.02 / 1.02)


def test_the_measures_of_a_sparse_gradient_do_not_depend_on_its_order():
    values, indices = np.arange(6.0).reshape(3, 2), np.array([4, 0, 4])
    np.testing.assert_allclose(measures(values, indices), measures(values[::-1], indices[::-1]))


def test_observations_are_compared_by_kind_training_and_names():
    first = Observation("gradient", ("a",), np.zeros((1, 5)), training=1)
    assert first.key == ("gradient", 1, ("a",))
    assert first._replace(training=2).key != first.key
