"""The noise floor: how far two groups of launches of the same code come apart by chance.

Launches of one commit on one machine are A/A runs: they differ by noise alone. A difference between two
commits counts only when it exceeds what noise makes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from harness.regression.hodges_lehmann import EFFICIENCY, Values

FALSE_ALARMS = 0.005  # of checks without a change, over all that one check compares
_MOST_CORRELATED = 0.8
_LIMIT = 3.0  # robust deviations
_NORMAL = 1.4826  # median absolute deviation to standard deviation, for normal noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The noise of one quantity: standard deviation of a launch, its degrees of freedom, and its memory.

    `inflation` is by how much the variance of a mean exceeds that of independent launches, at least 1:
    (1 + r) / (1 - r) for the lag-1 correlation r of launches in order of time, when a slow drift makes
    neighbours alike.
    """

    deviation: float
    freedom: int
    inflation: float

    def error(self, current: float, reference: float) -> float:
        """Return the standard error of the shift between groups of `current` and `reference` launches."""
        variance = self.inflation * (1 / current + 1 / reference) / EFFICIENCY
        return self.deviation * float(variance**0.5)

    def floor(self, current: float, reference: float, comparisons: int) -> float:
        """Return the shift that A/A groups exceed in one of `comparisons` with a chance of `FALSE_ALARMS`.

        Student's quantile for the degrees of freedom, shared out equally (Bonferroni).
        """
        quantile = float(stdtrit(self.freedom, 1 - FALSE_ALARMS / comparisons))
        return quantile * self.error(current, reference)


def learn(groups: Sequence[Values]) -> Noise | None:
    """Return the noise of the `groups`, each the costs of one A/A group in order of time; None below 2 values.

    Each group is taken around its own median, so what differs between groups does not count as noise. Rests
    beyond three robust deviations are drawn in to there (winsorised: Tukey 1962): the shift's estimate hardly
    moves with a few wild launches, so they must not hide a loss either.
    """
    used = [group for group in groups if len(group) >= 2]
    freedom = sum(len(group) - 1 for group in used)
    if not freedom:
        return None
    rests = [group - np.median(group) for group in used]
    limit = _LIMIT * _NORMAL * float(np.median(np.abs(np.concatenate(rests)))) * _small(used)
    drawn = [np.clip(rest, -limit, limit) for rest in rests] if limit else rests
    squares = sum(float(rest @ rest) for rest in drawn)
    return Noise(
        deviation=(squares / freedom) ** 0.5,
        freedom=freedom,
        inflation=_inflation(drawn, squares),
    )


def _small(groups: Sequence[Values]) -> float:
    """Return what the absolute rests of small groups lack: each group's median takes one of them to nothing."""
    values = sum(len(group) for group in groups)
    return float((values / (values - len(groups))) ** 0.5)


def _inflation(rests: Sequence[Values], squares: float) -> float:
    if squares == 0:
        return 1.0
    values = sum(len(rest) for rest in rests)
    lagged = sum(float(rest[1:] @ rest[:-1]) for rest in rests)
    # Around a group's own middle the correlation comes out too small by about one over the group's length.
    correlation = lagged / squares + len(rests) / values
    limited = float(np.clip(correlation, 0.0, _MOST_CORRELATED))
    return (1 + limited) / (1 - limited)
