"""Where a series changes: E-divisive, by distances between launches, without assumption on their noise.

Matteson & James, "A Nonparametric Approach for Multiple Change Point Analysis of Multivariate Data", Journal of
the American Statistical Association 109 (2014): the split with the greatest energy distance between what lies
before and after it, kept when a permutation test finds it unlikely by chance; then again in both parts.
"""

import numpy as np
from numpy.typing import NDArray

from harness.analysis.shift import Values

SHORTEST = 4  # launches before and after a change
LEVEL = 0.05  # chance of a split in a series without a change, as in the paper
_PERMUTATIONS = 199


def change_points(values: Values, *, shortest: int = SHORTEST, level: float = LEVEL, seed: int = 0) -> tuple[int, ...]:
    """Return the indices, in order, at which a new level of `values` [launches] begins.

    The permutations are seeded: the same series gives the same answer.
    """
    random = np.random.default_rng(seed)
    found: list[int] = []
    parts = [(0, len(values))]
    while parts:
        begin, end = parts.pop()
        if end - begin < 2 * shortest:
            continue
        distances = np.abs(np.subtract.outer(values[begin:end], values[begin:end]))
        split, gain = _best_split(distances, shortest)
        if _chance(distances, gain, shortest, random) > level:
            continue
        found.append(begin + split)
        parts += [(begin, begin + split), (begin + split, end)]
    return tuple(sorted(found))


def _best_split(distances: Values, shortest: int) -> tuple[int, float]:
    """Return the split with the greatest energy distance, scaled by n m / (n + m), and that distance."""
    size = len(distances)
    splits = np.arange(shortest, size - shortest + 1)
    # Sums over the square [0, k) x [0, k) for every k, over its complement, and over what lies between.
    square = np.concatenate([[0.0], np.cumsum(np.cumsum(distances, axis=0), axis=1).diagonal()])
    rows = np.concatenate([[0.0], np.cumsum(distances.sum(axis=1))])
    before = square[splits]
    between = rows[splits] - before
    after = square[size] - before - 2 * between
    n, m = splits.astype(float), (size - splits).astype(float)
    energy: NDArray[np.float64] = 2 * between / (n * m) - before / (n * (n - 1)) - after / (m * (m - 1))
    gains = n * m / (n + m) * energy
    best = int(np.argmax(gains))
    return int(splits[best]), float(gains[best])


def _chance(distances: Values, gain: float, shortest: int, random: np.random.Generator) -> float:
    """Return how often launches in random order have a split at least as good."""
    better = 0
    for _ in range(_PERMUTATIONS):
        order = random.permutation(len(distances))
        better += _best_split(distances[np.ix_(order, order)], shortest)[1] >= gain
    return (better + 1) / (_PERMUTATIONS + 1)
