"""Single calls to which one rank comes far later than it usually does: regular delays, and irregular ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from harness.why.waiting import FAR_OUT

Array = NDArray[np.float64]
SHORTEST = 5  # calls: of events that are closer one cannot say that they are regular
_EVENTS = 5  # delays of one rank, of a regular one in every epoch
_MOST_CALLS = 2000  # of an epoch that are examined
_MOST_EPOCHS = 5
_MOST_RANKS = 16  # those that come late by most
_CHANCE_REGULAR = 1e-5  # that calls without a period seem as regular
_CHANCE_RANK = 1e-4  # that so many of the late calls are one rank's


@dataclass(frozen=True, kw_only=True, slots=True)
class RareDelay:
    """Rank `rank` comes `seconds` later than usual to `count` of `calls`, one in each `period`; 0 without a period."""

    rank: int
    seconds: float
    count: int
    calls: int
    period: int


def irregular_delays(epochs: Sequence[Array]) -> RareDelay | None:
    """Return the delays of the rank that comes far too late most often, None where chance would give it as many.

    `epochs` as in `regular_delays`.
    """
    late = np.concatenate(epochs)
    low, high = np.percentile(late, [25, 75], axis=0)
    far = late > high + FAR_OUT * (high - low)
    ranks = late.shape[1]
    rank = int((late * far).sum(axis=0).argmax())
    if far[:, rank].sum() < _EVENTS:
        return None
    usual = float(np.median(late[:, rank]))
    typical = float(np.median(late[far[:, rank], rank]))
    far &= late >= (usual + typical) / 2  # smaller ones, which every machine has, do not count
    far[1:] &= ~far[:-1]  # calls in a row are one event
    counts = far.sum(axis=0)
    if counts[rank] < _EVENTS:
        return None
    test = stats.binomtest(int(counts[rank]), int(counts.sum()), 1 / ranks, alternative="greater")
    if ranks * float(test.pvalue) > _CHANCE_RANK:
        return None
    events = np.flatnonzero(far[:, rank])
    gaps = np.diff(events)
    gap = int(np.median(gaps))
    regular = bool(np.median(np.abs(gaps - gap)) <= 0.05 * gap) and gap >= SHORTEST
    return RareDelay(
        rank=rank,
        seconds=float(np.median(late[events, rank])) - usual,
        count=len(events),
        calls=len(far),
        period=gap if regular else 0,
    )


def regular_delays(epochs: Sequence[Array]) -> RareDelay | None:
    """Return the clearest regular delay, None where chance would give one as clear.

    `epochs` have how much later than the others each rank came, in seconds, [calls, ranks]. Each series is folded by
    every period. For each call of the period this gives the mean place among all calls of the epoch (by their order, so
    that no single call counts more than another). The latest of these is compared with what the same number of calls
    would give by chance: the normal limit of the mean of uniform numbers, for as many calls as the period has. Epochs,
    which need not begin at the same call of a period, are combined by Fisher's method, periods and ranks by
    Bonferroni's.
    """
    examined = [epoch[:_MOST_CALLS] for epoch in epochs[:_MOST_EPOCHS] if len(epoch) >= SHORTEST * _EVENTS]
    if not examined:
        return None
    ranks = np.argsort(sum(epoch.clip(min=0).mean(axis=0) for epoch in examined))[-_MOST_RANKS:]
    places = [(stats.rankdata(epoch[:, ranks], axis=0) - 0.5) / len(epoch) for epoch in examined]
    periods = range(SHORTEST, min(map(len, examined)) // _EVENTS + 1)
    logarithms = np.array([_chances_of_epochs(places, period) for period in periods])
    chances = special.gammaincc(len(places), -logarithms)  # of chi squared with two degrees of freedom an epoch
    row, column = np.unravel_index(chances.argmin(), chances.shape)
    if chances[row, column] * len(periods) * examined[0].shape[1] > _CHANCE_REGULAR:
        return None
    period = periods[row]
    rank = int(ranks[column])
    late = [epoch[:, rank] for epoch in epochs if len(epoch) >= period]
    return _delay_of_period(late, rank, period)


def _delay_of_period(epochs: Sequence[Array], rank: int, period: int) -> RareDelay:
    """Return the delay of `rank`: in each epoch [calls] of the latest call of the `period`, over all other calls."""
    late: list[Array] = []
    usual: list[Array] = []
    for epoch in epochs:
        phases = [np.median(epoch[phase::period]) for phase in range(period)]
        is_latest = np.arange(len(epoch)) % period == int(np.argmax(phases))
        late.append(epoch[is_latest])
        usual.append(epoch[~is_latest])
    late_calls = np.concatenate(late)
    usual_calls = np.concatenate(usual)
    return RareDelay(
        rank=rank,
        seconds=float(np.median(late_calls) - np.median(usual_calls)),
        count=len(late_calls),
        calls=len(late_calls) + len(usual_calls),
        period=period,
    )


def _chances_of_epochs(epochs: Sequence[Array], period: int) -> Array:
    """Return the sum over epochs of the logarithms that `_chances` gives, for every rank."""
    total: Array = np.sum([_chances(places, period) for places in epochs], axis=0)
    return total


def _chances(places: Array, period: int) -> Array:
    """Return the logarithm of the probability that some call of the period is as late by chance, for every rank."""
    whole_periods, rest = divmod(len(places), period)
    sums = places[: whole_periods * period].reshape(whole_periods, period, -1).sum(axis=0)
    sums[:rest] += places[whole_periods * period :]
    counts = (whole_periods + (np.arange(period) < rest))[:, None]
    latest = ((sums - 0.5 * counts) / np.sqrt(counts / 12)).max(axis=0)
    chances: Array = np.minimum(0.0, np.log(period) + special.log_ndtr(-latest))
    return chances
