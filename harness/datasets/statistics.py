"""Standardisation: the shift and factor that bring the training rows to mean 0 and deviation 1."""

import numpy as np
import numpy.typing as npt

from harness.datasets.dataset import Array

Vector = npt.NDArray[np.float32]
_BLOCK_VALUES = 4 << 20


def shift_and_factor(train_x: Array, standardise: str) -> tuple[Vector, Vector]:
    """Return `shift` and `factor`, float32, so that (x - shift) * factor is standardised over `train_x`.

    `standardise` is ``channel`` (over rows and all axes but the last; both have the last axis' shape),
    ``feature`` (over rows; both have a row's shape) or ``none`` (0 and 1). A feature that never varies has
    factor 1. Computed block by block in float64 (Chan, Golub, LeVeque 1979: pairwise update).
    """
    features = train_x.shape[1:]
    if standardise == "none":
        return np.zeros(features, np.float32), np.ones(features, np.float32)
    shape = features[-1:] if standardise == "channel" else (int(np.prod(features)),)
    count, mean, squares = 0, np.zeros(shape), np.zeros(shape)
    step = max(1, _BLOCK_VALUES // max(1, int(np.prod(features))))
    for start in range(0, len(train_x), step):
        block = np.asarray(train_x[start : start + step], np.float64).reshape(-1, *shape)
        block_mean = block.mean(axis=0)
        delta = block_mean - mean
        total = count + len(block)
        squares += ((block - block_mean) ** 2).sum(axis=0) + delta**2 * (count * len(block) / total)
        mean += delta * (len(block) / total)
        count = total
    deviation = np.sqrt(squares / count)
    # float32 rounds a constant to about 1e-7 of its size: less than that is no variation.
    constant = deviation <= 1e-7 * np.abs(mean)
    factor = np.where(constant, 1.0, 1.0 / np.where(constant, 1.0, deviation))
    result = features[-1:] if standardise == "channel" else features
    return mean.astype(np.float32).reshape(result), factor.astype(np.float32).reshape(result)
