"""How much the launches of a point differ from each other, and which stand out."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FENCE = 1.5  # Tukey, "Exploratory Data Analysis" (1977): this many interquartile ranges beyond the quartiles
_FEWEST = 5  # launches: quartiles of fewer say nothing about a single one


def between(seconds: ArrayLike) -> float | None:
    """Return the relative standard deviation of the launches' times, None for a single launch."""
    values = np.asarray(seconds, dtype=float)
    return float(np.std(values, ddof=1) / np.mean(values)) if len(values) > 1 else None


def outliers(seconds: ArrayLike) -> NDArray[np.bool_]:
    """Return which launches lie beyond Tukey's fences; none of fewer than 5.

    They are marked and counted like all others: a slow launch is a fact about the machine.
    """
    values = np.asarray(seconds, dtype=float)
    if len(values) < _FEWEST:
        return np.zeros(len(values), dtype=bool)
    low, high = np.percentile(values, [25, 75])
    reach = _FENCE * (high - low)
    found: NDArray[np.bool_] = (values < low - reach) | (values > high + reach)
    return found
