"""What a new session says beside those of a baseline: blocks within sessions, and sessions that differ too.

A session's blocks share what the machine was like that day. So a value has two levels of noise,

    value of a block = level + session's deviation + block's deviation,

both about normal, of the logarithm of a quantity. The blocks of a session tell the second by themselves; how far
sessions differ is told by several sessions only. See Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time"
(ISMM 2013), and on the degrees of freedom Satterthwaite, "An Approximate Distribution of Estimates of Variance
Components" (Biometrics Bulletin 2, 1946). Simulated in tests/regression/test_session_model.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from harness.analysis.confidence_intervals import FEWEST_BLOCKS, LEVEL, Interval

Values = NDArray[np.float64]
Sessions = Sequence[Values]
"""The values of the blocks of every session, one array each."""

FEWEST_FREEDOM = 2
"""Degrees of freedom between sessions from which these tell how far sessions differ: three of a baseline have two."""
_MOST_BLOCKS = 24
_MOST_SESSIONS = 30


class ScatterSource(StrEnum):
    """What told how far sessions differ."""

    COMPARED = "the sessions compared"
    MACHINE = "other sweeps of this machine"
    SAME_DAY = "a default for sessions of one day"
    DEFAULT = "a default for sessions of different days"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """How far the means of sessions differ: their `variance`, of logarithms, with its degrees of `freedom`.

    It contains `block_share` of the variance between blocks: the mean over sessions of one over their blocks, 0 where
    it is of the sessions alone. `sessions` is of how many it was made.
    """

    source: ScatterSource
    variance: float
    freedom: int
    sessions: int
    block_share: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How far the level of new sessions is above that of the baseline's, with the standard error of its estimate.

    The error has what differs between sessions and between blocks anyway.
    """

    mean: float
    error: float
    freedom: float

    def reach(self) -> float:
        """Return half the width of the two-sided interval of 95 %."""
        return float(stdtrit(self.freedom, 0.5 + LEVEL / 2)) * self.error

    def interval(self) -> Interval:
        """Return the two-sided interval of 95 %."""
        reach = self.reach()
        return Interval(low=self.mean - reach, high=self.mean + reach)

    @property
    def chance_of_none_above(self) -> float:
        """The p-value of no difference beside one above 0; 1 less it is that beside one below 0."""
        if self.error == 0:
            return float(self.mean <= 0)
        return float(stdtr(self.freedom, -self.mean / self.error))


def holm(chances: Sequence[float], error: float) -> tuple[bool, ...]:
    """Return which of several hypotheses are rejected whose `chances` (p-values) share the `error`, by Holm's steps."""
    rejected = [False] * len(chances)
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    for tried, place in enumerate(order):
        if chances[place] > error / (len(chances) - tried):
            break
        rejected[place] = True
    return tuple(rejected)


def scatter_between(
    groups: Sequence[Sessions], source: ScatterSource, *, fewest: int = FEWEST_FREEDOM
) -> Scatter | None:
    """Return how far the sessions within each of `groups` differ, None for fewer than `fewest` degrees of freedom.

    A group is of one level: the sessions of a baseline, or of one study of a machine.
    """
    squares = 0.0
    shares = 0.0
    freedom = 0
    sessions = 0
    for group in groups:
        means = [float(np.mean(blocks)) for blocks in group]
        if len(means) < 2:
            continue
        squares += float(np.var(means)) * len(means)
        shares += (len(means) - 1) * float(np.mean([1 / len(blocks) for blocks in group]))
        freedom += len(means) - 1
        sessions += len(means)
    if freedom < fewest:
        return None
    return Scatter(
        source=source, variance=squares / freedom, freedom=freedom, sessions=sessions, block_share=shares / freedom
    )


def _block_variance(sessions: Sequence[Values]) -> tuple[float, int]:
    """Return the variance of blocks within `sessions`, pooled, and its degrees of freedom."""
    squares = sum(float(np.var(blocks)) * len(blocks) for blocks in sessions)
    freedom = sum(len(blocks) - 1 for blocks in sessions)
    return (squares / freedom if freedom else 0.0), freedom


def _mean_of_means(sessions: Sessions) -> float:
    return float(np.mean([np.mean(blocks) for blocks in sessions]))


def has_enough_blocks(reference: Sessions, current: Sessions, scatter: Scatter) -> bool:
    """Say whether an interval can be made: blocks of one session at least tell how far blocks differ.

    Sessions of one block each need not tell it, where these sessions themselves told how far they differ: what blocks
    differ by is in that.
    """
    if not reference or not current:
        return False
    most = max(map(len, (*reference, *current)))
    return most >= FEWEST_BLOCKS or (most == 1 and scatter.source == ScatterSource.COMPARED)


def difference(reference: Sessions, current: Sessions, scatter: Scatter) -> Difference:
    """Return how far `current` sessions are above the `reference`'s, sessions differing by `scatter`.

    They have enough blocks (`has_enough_blocks`). Every session counts alike.
    """
    block_variance, block_freedom = _block_variance((*reference, *current))
    return _difference(
        _mean_of_means(current) - _mean_of_means(reference),
        scatter,
        (block_variance, block_freedom),
        session_share=1 / len(reference) + 1 / len(current),
        block_share=sum(1 / len(blocks) for blocks in reference) / len(reference) ** 2
        + sum(1 / len(blocks) for blocks in current) / len(current) ** 2,
    )


def _difference(
    mean: float, scatter: Scatter, blocks: tuple[float, int], *, session_share: float, block_share: float
) -> Difference:
    """Return the difference whose variance has so many times that of sessions and that of blocks."""
    block_variance, block_freedom = blocks
    of_sessions = session_share * scatter.variance
    of_blocks = (block_share - session_share * scatter.block_share) * block_variance
    variance = of_sessions + of_blocks
    if of_blocks < 0:  # sessions may differ by chance less than their blocks alone make them
        variance = max(variance, block_share * block_variance)
    if variance == 0:
        return Difference(mean=mean, error=0.0, freedom=float(block_freedom or scatter.freedom))
    if block_freedom == 0:  # sessions of one block each
        return Difference(mean=mean, error=math.sqrt(variance), freedom=float(scatter.freedom))
    spread = of_sessions**2 / scatter.freedom + of_blocks**2 / block_freedom
    freedom = variance**2 / spread if spread else math.inf
    freedom = min(max(freedom, float(min(scatter.freedom, block_freedom))), float(scatter.freedom + block_freedom))
    return Difference(mean=mean, error=math.sqrt(variance), freedom=freedom)


def new_session_reach(reference: Sessions, scatter: Scatter, blocks: int) -> float:
    """Return how far a new session of so many `blocks` is from the `reference`'s mean at most, with 95 %.

    The `reference` has a session with two blocks at least, or its sessions told the `scatter`.
    """
    block_share = sum(1 / len(each) for each in reference) / len(reference) ** 2 + 1 / blocks
    session_share = 1 / len(reference) + 1
    planned = _difference(
        0.0, scatter, _block_variance(reference), session_share=session_share, block_share=block_share
    )
    return planned.reach()


# A run beyond limits: the rule of control charts that needs few sessions, because a baseline gives the limits.

_FEWEST_BEYOND = 3  # two in a row give false alarms of 5 % on eight charts


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitRun:
    """All of the newest `sessions` lie beyond the limits, on one side.

    `first` is the place of the first of them, `step` what their mean is above the baseline's.
    """

    first: int
    sessions: int
    step: float


def limit_run(means: Sequence[float], level: float, reach: float) -> LimitRun | None:
    """Return the run that ends the `means` of sessions in order of time, None where there is none of three or more.

    The limits are `reach` (`new_session_reach`) to either side of the `level`. See Western Electric, "Statistical
    Quality Control Handbook" (1956), on runs, and the simulation of false alarms in tests/regression/test_history.py.
    """
    above = np.array(means, dtype=float) - level
    if not len(above):
        return None
    beyond = above * np.sign(above[-1]) > reach
    inside = np.flatnonzero(~beyond)
    first = int(inside[-1]) + 1 if len(inside) else 0
    count = len(above) - first
    if count < _FEWEST_BEYOND:
        return None
    return LimitRun(first=first, sessions=count, step=float(above[first:].mean()))


# A change of level in a series of sessions. apache-otava finds such for the field; it wants an older NumPy than
# TensorFlow does, and brings the clients of BigQuery, PostgreSQL and Slack. Its test is the same: the split with the
# largest t value, judged by permutations, because the largest of many t values follows no t distribution.

_PERMUTATIONS = 1999  # of an error of 5 %; of a smaller one more, so that it can be reached
_ROUNDING = 1e-9  # relative: the same sessions on the same sides, added in another order
_FEWEST_AROUND = 2  # sessions on either side of a change


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelChange:
    """The level of a series changed: `first` is the place of the first session after it, `step` by how much."""

    first: int
    step: float
    chance: float


def level_change(means: Sequence[float], *, error: float) -> LevelChange | None:
    """Return the change of level in the `means` of sessions in order of time, None where none is sure.

    `error` is the chance to find one where there is none. The permutations are seeded: the same again gives the same.
    Few sessions can be divided in few ways only, so that no change of 5 is sure, however large it is: 8 are needed at
    an error of 5 %, 11 at 0.6 %.
    """
    values = np.array(means, dtype=float)
    if len(values) < 2 * _FEWEST_AROUND + 1 or np.ptp(values) == 0:
        return None
    statistics = _split_statistics(values[None])[0]
    random = np.random.default_rng(0)
    permutations = max(_PERMUTATIONS, math.ceil(10 / error))
    shuffled = random.permuted(np.tile(values, (permutations, 1)), axis=1)
    largest = _split_statistics(shuffled).max(axis=1)
    as_large = largest >= statistics.max() * (1 - _ROUNDING)
    chance = (1 + int(as_large.sum())) / (1 + permutations)
    if chance > error:
        return None
    first = int(statistics.argmax()) + _FEWEST_AROUND
    return LevelChange(first=first, step=float(values[first:].mean() - values[:first].mean()), chance=chance)


def _split_statistics(series: Values) -> Values:
    """Return the squared t value of every split of each of `series` [series, sessions], apart from a constant factor.

    With all deviations from one mean in the denominator, which orders splits as the t value does.
    """
    count = series.shape[1]
    centred = series - series.mean(axis=1, keepdims=True)
    before = np.arange(_FEWEST_AROUND, count - _FEWEST_AROUND + 1)
    sums = centred.cumsum(axis=1)[:, before - 1]
    statistics: Values = sums**2 * (1 / before + 1 / (count - before)) / (centred**2).sum(axis=1, keepdims=True)
    return statistics


@dataclass(frozen=True, kw_only=True, slots=True)
class Needed:
    """What would tell a change of the limit from none: more `blocks` in this session, or more `sessions` on each side.

    One of the two is 0. Both are 0 where as many as are sensible would not do.
    """

    blocks: int
    sessions: int

    @property
    def is_enough(self) -> bool:
        """Whether a sensible number would do."""
        return self.blocks > 0 or self.sessions > 0


def needed(reference: Sessions, current: Sessions, scatter: Scatter, limit: float) -> Needed:
    """Return what would make the interval of the difference reach less than `limit` to either side."""
    blocks = _block_variance((*reference, *current))
    baseline_share = sum(1 / len(each) for each in reference) / len(reference) ** 2
    session_share = 1 / len(reference) + 1 / len(current)
    now = min(map(len, current))
    for count in range(now + 1, _MOST_BLOCKS + 1):
        block_share = baseline_share + 1 / count / len(current)
        after = (blocks[0], blocks[1] + len(current) * (count - now))
        planned = _difference(0.0, scatter, after, session_share=session_share, block_share=block_share)
        if planned.reach() < limit:
            return Needed(blocks=count - now, sessions=0)
    count = max(now, FEWEST_BLOCKS)
    for more in range(1, _MOST_SESSIONS + 1):
        sides = (len(reference) + more, len(current) + more)
        shares = sum(1 / side for side in sides)
        freedom = max(scatter.freedom, sum(sides) - 2)
        measured = Scatter(
            source=scatter.source,
            variance=scatter.variance,
            freedom=freedom,
            sessions=sum(sides),
            block_share=scatter.block_share,
        )
        after = (blocks[0], blocks[1] + 2 * more * (count - 1))
        planned = _difference(0.0, measured, after, session_share=shares, block_share=shares / count)
        if planned.reach() < limit:
            return Needed(blocks=0, sessions=more)
    return Needed(blocks=0, sessions=0)
