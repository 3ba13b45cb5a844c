"""Standardisation: the shift and factor that bring the training rows to mean 0 and deviation 1."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from harness.datasets.dataset import Array

Vector = npt.NDArray[np.float32]


def shift_and_factor(blocks: Iterable[Array], features: tuple[int, ...], standardise: str) -> tuple[Vector, Vector]:
    """Return `shift` and `factor`, float32, so that (x - shift) * factor is standardised over the `blocks`.

    A block is [rows, *features]. `standardise` is ``channel`` (over rows and all axes but the last; both
    have the last axis' length), ``feature`` (over rows; both have a row's shape) or ``none`` (0 and 1). A
    feature that never varies has factor 1. In float64, block by block (Chan, Golub, LeVeque 1979).
    """
    if standardise == "none":
        return np.zeros(features, np.float32), np.ones(features, np.float32)
    result = features[-1:] if standardise == "channel" else features
    size = int(np.prod(result))
    count, mean, squares = 0, np.zeros(size), np.zeros(size)
    for rows in blocks:
        block = rows.reshape(-1, size).astype(np.float64)
        block_mean = block.mean(axis=0)
        delta = block_mean - mean
        total = count + len(block)
        block -= block_mean
        squares += np.einsum("ij,ij->j", block, block) + delta**2 * (count * len(block) / total)
        mean += delta * (len(block) / total)
        count = total
    deviation = np.sqrt(squares / count)
    # float32 rounds a constant to about 1e-7 of its size: less than that is no variation.
    constant = deviation <= 1e-7 * np.abs(mean)
    factor = np.where(constant, 1.0, 1.0 / np.where(constant, 1.0, deviation))
    return mean.astype(np.float32).reshape(result), factor.astype(np.float32).reshape(result)
