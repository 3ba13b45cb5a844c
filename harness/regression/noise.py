"""The noise floor: how far two groups of launches of the same code come apart by chance.

Launches of one commit on one machine are A/A runs: they differ by noise alone. A difference between two
commits counts only when it exceeds what noise makes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from harness.analysis.stats import NEEDED
from harness.regression.hodges_lehmann import ASYMPTOTIC, Values
from harness.regression.quantities import RELATIVE, Sample, as_cost, as_loss, samples
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement

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
        variance = self.inflation * (1 / current + 1 / reference) / ASYMPTOTIC
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


_MOST_LAUNCHES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectableLoss:
    """The noise of one quantity at one layout (None: the curve), in parts of speed, efficiency or an epoch.

    `spread` is one launch's standard deviation, `floor` what noise alone seldom exceeds between 6 launches
    and as many as were measured. `launches_for` gives for a loss the launches (of each layout, against as many
    as were measured) from which it stands out, None where that takes more than a hundred.
    """

    quantity: str
    layout: Layout | None
    launches: int
    spread: float
    inflation: float
    floor: float
    launches_for: dict[float, int | None]


def detectable_losses(measurement: Measurement, losses: tuple[float, ...] = (0.05, 0.10)) -> tuple[DetectableLoss, ...]:
    """Return the noise floor of every quantity that decides, from A/A launches (`measurement`)."""
    found = [sample for sample in samples(measurement, measurement, measurement.layouts) if sample.decides]
    rows = []
    for sample in found:
        noise = learn([sample.costs])
        if noise is not None:
            rows.append(_detectable(sample, noise, losses, comparisons=len(found)))
    return tuple(rows)


def _detectable(sample: Sample, noise: Noise, losses: tuple[float, ...], comparisons: int) -> DetectableLoss:
    relative = sample.quantity in RELATIVE
    launches = len(sample.costs)

    def needed(loss: float) -> int | None:
        cost = as_cost(loss, relative)
        enough = (n for n in range(NEEDED, _MOST_LAUNCHES) if noise.floor(n, launches, comparisons) < cost)
        return next(enough, None)

    return DetectableLoss(
        quantity=sample.quantity,
        layout=sample.layout,
        launches=launches,
        spread=as_loss(noise.deviation, relative),
        inflation=noise.inflation,
        floor=as_loss(noise.floor(NEEDED, launches, comparisons), relative),
        launches_for={loss: needed(loss) for loss in losses},
    )
