"""Measures of what was learned."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from harness.train.evaluation import auc


def test_the_auc_is_scikit_learns() -> None:
    random = np.random.default_rng(5)
    labels = random.integers(0, 2, 5000)
    scores = np.round(random.normal(labels * 0.7), 1)  # with ties
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)
    assert auc(scores, np.ones_like(labels)) is None
    assert auc(np.where(labels == 1, np.nan, scores), labels) is None
