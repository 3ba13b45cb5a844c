"""Synthetic stand-ins: like the real set in shape, type, range and balance, repeatable, and learnable."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import datasets
from harness.datasets import synthetic
from harness.datasets.known.papers import ADULT_GROUPS
from harness.datasets.npy_files import shift_and_factor


def stand_in(name: str, rows: int, part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    chunks = list(synthetic.chunks(datasets.dataset_info(name), rows, part))
    return np.concatenate([x for x, _ in chunks]), np.concatenate([y for _, y in chunks])


@pytest.mark.parametrize("name", [name for name in datasets.dataset_names() if name != "imagenet"])
def test_stand_in_looks_like_the_set(name):
    facts = datasets.dataset_info(name)
    x, y = stand_in(name, 5_000)
    assert x.shape == (5_000, *facts.features) and x.dtype == facts.dtype and y.dtype == np.int32
    assert np.isfinite(x).all()
    if facts.value_range:
        assert (x.min(), x.max()) == facts.value_range
    np.testing.assert_allclose(np.bincount(y, minlength=facts.classes) / 5_000, facts.shares, atol=0.03)


@settings(max_examples=8)
@given(name=st.sampled_from(["adult", "higgs", "mnist"]), few=st.integers(1, 9_000), more=st.integers(0, 3_000))
def test_smaller_stand_in_is_a_prefix_of_a_larger(name, few, more):
    x, y = stand_in(name, few)
    larger_x, larger_y = stand_in(name, few + more)
    np.testing.assert_array_equal(x, larger_x[:few])
    np.testing.assert_array_equal(y, larger_y[:few])


def test_parts_blocks_and_sets_differ():
    x, _ = stand_in("mnist", 8_192)
    assert not np.array_equal(x[:4_096], x[4_096:])
    assert not np.array_equal(x[:100], stand_in("mnist", 100, "test")[0])
    assert not np.array_equal(stand_in("mnist", 100)[1], stand_in("cifar10", 100)[1])


def test_adult_stand_in_is_one_hot_in_every_group():
    x, _ = stand_in("adult", 2_000)
    edges = np.cumsum((0, *ADULT_GROUPS))
    assert edges[-1] == 123
    for first, last in itertools.pairwise(edges):
        assert (x[:, first:last].sum(axis=1) == 1).all()


def test_higgs_stand_in_has_tags_of_three_levels_and_positive_masses():
    x, _ = stand_in("higgs", 2_000)
    for column, level in ((8, 1.0865), (12, 1.1074), (16, 1.2741), (20, 1.5510)):
        np.testing.assert_allclose(np.unique(x[:, column]), [0, level, 2 * level], rtol=1e-6)
    assert (x[:, [0, 3, 5, 9, 13, 17, *range(21, 28)]] > 0).all()


@pytest.mark.parametrize(
    ("train", "original", "expected"),
    [(60_000, 10_000, 10_000), (10_000, 10_000, 2_000), (100, 10_000, 1_000), (11_000_000, 100_000, 100_000)],
)
def test_size_of_the_test_part(train, original, expected):
    dataset = dataclasses.replace(datasets.dataset_info("mnist"), test_rows=original)
    assert synthetic.test_rows(dataset, train) == expected


@pytest.mark.parametrize(("name", "least"), [("acoustic", 0.62), ("adult", 0.80), ("mnist", 0.75), ("cifar10", 0.5)])
def test_stand_in_is_learnable_but_not_wholly(name, least):
    assert least < logistic_accuracy(name)[0] < 0.97


def test_higgs_stand_in_is_learnable_but_not_wholly():
    accuracy, auc = logistic_accuracy("higgs")
    assert accuracy > 0.62 and 0.68 < auc < 0.97


def logistic_accuracy(name: str) -> tuple[float, float]:
    """Return test accuracy and (for two classes) AUC of a logistic regression on 4,000 rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    facts, patch = datasets.dataset_info(name), datasets.dataset_info(name).stand_in.patch
    x, y = stand_in(name, 4_000)
    test_x, test_y = stand_in(name, 2_000, "test")
    shift, factor = shift_and_factor([x], facts.features, facts.standardise)

    def flat(rows):
        scaled = (rows.astype(np.float32) - shift) * factor
        return (scaled[:, ::patch, ::patch] if patch > 1 else scaled).reshape(len(rows), -1)

    model = LogisticRegression(max_iter=40, tol=1e-2).fit(flat(x), y)
    auc = roc_auc_score(test_y, model.predict_proba(flat(test_x))[:, 1]) if facts.classes == 2 else 0.0
    return model.score(flat(test_x), test_y), auc
