"""Single calls to which one rank comes far later than it usually does, regularly or not."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from harness.analysis import numbers
from harness.why.launch_detail import FAR_OUT, Case
from harness.why.symptoms import Symptom

SHORTEST = 5  # calls: of events that are closer one cannot say that they are regular
_LEAST_COST = 0.001  # part of an epoch
_EVENTS = 5  # delays of one rank, of a regular one in every epoch
_CALLS, _EPOCHS, _RANKS = 2000, 5, 16  # examined; of the ranks those that come late by most
_CHANCE_REGULAR = 1e-5  # that calls without a period seem as regular
_CHANCE_RANK = 1e-4  # that so many of the late calls are one rank's

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RareDelay:
    """Rank `rank` comes `delay` seconds later than usual to `count` of `calls`: `every` so many, 0 without period."""

    rank: int
    delay: float
    count: int
    calls: int
    every: int


def rare_delays(case: Case) -> Symptom | None:
    """Single calls to which one rank comes far later than it usually does, more of them than chance gives it.

    Regular ones are found among larger noise too (`regular_delays`). Others are far beyond Tukey's outer fences of how
    much later than the median of the others each rank came. By chance every rank has as many of these calls as any
    other (binomial test).
    """
    late = [
        own - (own[:, ::-1] if own.shape[1] == 2 else np.median(own, axis=1, keepdims=True))
        for own in (one.between[:-1] for one in case.calls)
    ]
    ranks, found = len(case.run.ranks), regular_delays(late)
    cost = found.count * found.delay * (ranks - 1) / ranks / case.total if found else 0.0
    if found is None or cost < _LEAST_COST:
        cost = case.skew_causes.get("rare", 0.0)
        found = irregular_delays(late) if cost >= _LEAST_COST else None
    if found is None:
        return None
    when = f"every {found.every} calls, so the program causes it" if found.every else "irregularly, as interrupts are"
    text = (
        f"Rank {found.rank} of {ranks} on {case.run.ranks[found.rank].host} comes {numbers.seconds(found.delay)} late "
        f"to {found.count} of {found.calls} calls, {when}; all others wait for it."
    )
    return Symptom(text=text, cost=cost, who=f"{found.rank}/{ranks}")


def irregular_delays(epochs: Sequence[Array]) -> RareDelay | None:
    """Return the delays of the rank that comes far too late most often, None where chance would give it as many.

    `epochs` as in `regular_delays`.
    """
    late = np.concatenate(epochs)
    low, high = np.percentile(late, [25, 75], axis=0)
    far = late > high + FAR_OUT * (high - low)
    rank, ranks = int((late * far).sum(axis=0).argmax()), late.shape[1]
    if far[:, rank].sum() < _EVENTS:
        return None
    usual, typical = float(np.median(late[:, rank])), float(np.median(late[far[:, rank], rank]))
    far &= late >= (usual + typical) / 2  # smaller ones, which every machine has, do not count
    far[1:] &= ~far[:-1]  # calls in a row are one event
    counts = far.sum(axis=0)
    if counts[rank] < _EVENTS:
        return None
    found = stats.binomtest(int(counts[rank]), int(counts.sum()), 1 / ranks, alternative="greater")
    if ranks * float(found.pvalue) > _CHANCE_RANK:
        return None
    at = np.flatnonzero(far[:, rank])
    steps = np.diff(at)
    every = int(np.median(steps))
    regular = bool(np.median(np.abs(steps - every)) <= 0.05 * every) and every >= SHORTEST
    delay = float(np.median(late[at, rank])) - usual
    return RareDelay(rank=rank, delay=delay, count=len(at), calls=len(far), every=every if regular else 0)


def regular_delays(epochs: Sequence[Array]) -> RareDelay | None:
    """Return the clearest regular delay, None where chance would give one as clear.

    `epochs` have how much later than the others each rank came, in seconds, [calls, ranks]. Each is folded by every
    period: of each call of it the mean place among all calls of the epoch (their ranks, so that no single call counts
    for more than another), whose latest is compared with what as many calls of any epoch would give: the normal
    limit of the mean of uniform numbers, for as many calls as the period has. Epochs, which need not begin at the same
    call of a period, are combined by Fisher's method, periods and ranks by Bonferroni's.
    """
    seen = [one[:_CALLS] for one in epochs[:_EPOCHS] if len(one) >= SHORTEST * _EVENTS]
    if not seen:
        return None
    ranks = np.argsort(sum(one.clip(min=0).mean(axis=0) for one in seen))[-_RANKS:]
    places = [(stats.rankdata(one[:, ranks], axis=0) - 0.5) / len(one) for one in seen]
    periods = range(SHORTEST, min(map(len, seen)) // _EVENTS + 1)
    logarithms = np.array([sum(_chances(one, every) for one in places) for every in periods])
    chances = special.gammaincc(len(places), -logarithms)  # of chi squared with two degrees of freedom an epoch
    place, column = np.unravel_index(chances.argmin(), chances.shape)
    if chances[place, column] * len(periods) * seen[0].shape[1] > _CHANCE_REGULAR:
        return None
    every, rank = periods[place], int(ranks[column])
    late = [one[:, rank] for one in epochs if len(one) >= every]
    there = [np.arange(len(one)) % every == _latest_phase(one, every) for one in late]
    events, others = (
        np.concatenate([one[at if event else ~at] for one, at in zip(late, there, strict=True)])
        for event in (True, False)
    )
    delay, calls = float(np.median(events) - np.median(others)), len(events) + len(others)
    return RareDelay(rank=rank, delay=delay, count=len(events), calls=calls, every=every)


def _latest_phase(one: Array, every: int) -> int:
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
