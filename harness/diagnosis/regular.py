"""Delays that come every so many calls, found among much larger noise: the calls of an epoch, folded by a period."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

SHORTEST = 5  # calls: of events that are closer one cannot say that they are regular
_FEWEST = 5  # events of an epoch
_CALLS, _EPOCHS, _RANKS = 2000, 5, 16  # that are looked at, of ranks those that come late by most
_CHANCE = 1e-5  # that calls without a period look as regular

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Regular:
    """Every `every` calls rank `rank` comes `delay` seconds later than it usually does, `count` times of `calls`."""

    rank: int
    every: int
    delay: float
    count: int
    calls: int


def regular_delays(epochs: Sequence[Array]) -> Regular | None:
    """Return the clearest regular delay, None where chance would give one as clear.

    `epochs` have how much later than the others each rank came, in seconds, [calls, ranks]. Each is folded by every
    period: of each call of it the mean place among all calls of the epoch (their ranks, so that no single call counts
    for more than another), whose latest is held against what as many calls of any epoch would give: the normal
    limit of the mean of uniform numbers, for as many calls as the period has. Epochs, which need not begin at the same
    call of a period, are put together by Fisher's method, periods and ranks by Bonferroni's.
    """
    seen = [one[:_CALLS] for one in epochs[:_EPOCHS] if len(one) >= SHORTEST * _FEWEST]
    if not seen:
        return None
    ranks = np.argsort(sum(one.clip(min=0).mean(axis=0) for one in seen))[-_RANKS:]
    places = [(stats.rankdata(one[:, ranks], axis=0) - 0.5) / len(one) for one in seen]
    periods = range(SHORTEST, min(map(len, seen)) // _FEWEST + 1)
    logarithms = np.array([sum(_chances(one, every) for one in places) for every in periods])
    chances = special.gammaincc(len(places), -logarithms)  # of chi squared with two degrees of freedom an epoch
    place, column = np.unravel_index(chances.argmin(), chances.shape)
    if chances[place, column] * len(periods) * seen[0].shape[1] > _CHANCE:
        return None
    every, rank = periods[place], int(ranks[column])
    late = [one[:, rank] for one in epochs if len(one) >= every]
    there = [_fold(one, every) == _phase(one, every) for one in late]
    events, others = (
        np.concatenate([one[at if event else ~at] for one, at in zip(late, there, strict=True)])
        for event in (True, False)
    )
    return Regular(
        rank=rank, every=every, delay=float(np.median(events) - np.median(others)), count=len(events),
        calls=len(events) + len(others),
    )  # fmt: skip


def _fold(one: Array, every: int) -> NDArray[np.int64]:
    return np.arange(len(one)) % every


def _phase(one: Array, every: int) -> int:
    """Return the call of a period that is latest, by medians."""
    return int(np.argmax([np.median(one[phase::every]) for phase in range(every)]))


def _chances(places: Array, every: int) -> Array:
    """Return the logarithm of the probability that some call of the period is as late by chance, for every rank."""
    whole, more = divmod(len(places), every)
    sums = places[: whole * every].reshape(whole, every, -1).sum(axis=0)
    sums[:more] += places[whole * every :]
    counts = (whole + (np.arange(every) < more))[:, None]
    latest = ((sums - 0.5 * counts) / np.sqrt(counts / 12)).max(axis=0)
    found: Array = np.minimum(0.0, np.log(every) + special.log_ndtr(-latest))
    return found
