"""The noise floor: how far two groups of launches of the same code differ by chance.

Launches of one commit on one machine are A/A runs: they differ by noise alone. A difference between two commits
counts only when it exceeds what noise makes. Noise has two levels (Kalibera & Jones 2013): launches of a session
scatter around its middle, and sessions scatter around each other, for what a session finds (another clock rate,
another host below a virtual machine) all its launches share, however many there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from harness.analysis.stats import NEEDED, SESSION_SPREAD, Interval
from harness.regression.quantities import RELATIVE, CostSample, SampleSize, Values, as_cost, as_slowdown, samples
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement

FALSE_ALARMS = 0.01  # of checks without a change, over all that one check compares
KNOWN = 4  # degrees of freedom between sessions from which they are measured: five sessions of one commit
_ASSUMED = np.inf  # degrees of freedom of what is assumed
_EFFICIENCY = 3 / np.pi  # of the Hodges-Lehmann estimate against the difference of means, normal noise
_MOST_CORRELATED = 0.8
_LIMIT = 3.0  # robust deviations
_NORMAL = 1.4826  # median absolute deviation to standard deviation, for normal noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The noise of one quantity: standard deviation of a launch, its degrees of freedom, and its memory.

    `inflation` is by how much the variance of a mean exceeds that of independent launches, at least 1:
    (1 + r) / (1 - r) for the lag-1 correlation r of launches in order of time, when a slow drift makes
    neighbours similar. `between` is the standard deviation between sessions, `sessions` its degrees of freedom:
    A/A sessions less one for each commit; below `KNOWN` at least `SESSION_SPREAD` is assumed.
    """

    deviation: float
    freedom: int
    inflation: float
    between: float
    sessions: int

    @property
    def assumed(self) -> bool:
        """Whether the deviation between sessions is assumed and not measured."""
        return self.sessions < KNOWN

    def between_error(self, current: SampleSize, reference: SampleSize, chance: float) -> float:
        """Return what sessions alone add to the shift between two groups with less than `chance` (one-sided)."""
        quantile = float(stdtrit(_ASSUMED if self.assumed else self.sessions, 1 - chance))
        return quantile * self.between * float((1 / current.sessions + 1 / reference.sessions) ** 0.5)

    def within_error(self, current: SampleSize, reference: SampleSize, chance: float) -> float:
        """Return what launches alone add to the shift between two groups with less than `chance` (one-sided)."""
        variance = self.inflation * (1 / current.launches + 1 / reference.launches) / _EFFICIENCY
        return float(stdtrit(self.freedom, 1 - chance)) * self.deviation * float(variance**0.5)

    def floor(self, current: SampleSize, reference: SampleSize, comparisons: int, *, looks: int = 1) -> float:
        """Return the shift that A/A groups exceed in one of `comparisons` with a chance of `FALSE_ALARMS`.

        Student's quantiles, the chance shared out equally (Bonferroni). `looks` at one session while launches are
        added share it too, but for what lies between sessions: that stays the same from look to look.
        """
        within = self.within_error(current, reference, FALSE_ALARMS / comparisons / looks)
        return float(np.hypot(within, self.between_error(current, reference, FALSE_ALARMS / comparisons)))

    def widened(
        self, interval: Interval, shift: float, current: SampleSize, reference: SampleSize, level: float
    ) -> Interval:
        """Return the `interval` of a `shift`, made of launches alone, with the error between sessions in it.

        Squares of the half widths add up (Zou & Donner, "Construction of confidence limits about effect measures",
        Statistics in Medicine 27, 2008: recovered variances).
        """
        more = self.between_error(current, reference, (1 - level) / 2)
        return Interval(
            low=shift - float(np.hypot(shift - interval.low, more)),
            high=shift + float(np.hypot(interval.high - shift, more)),
        )


def learn_noise(states: Sequence[Sequence[Values]]) -> Noise | None:
    """Return the noise of `states` of the code, each the costs of its sessions in order of time.

    None where no session has two launches. Each session is taken around its own median. Residuals beyond three
    robust deviations are winsorised (Tukey 1962): the shift's estimate hardly moves with a few wild launches, so they
    must not hide a slowdown either. The deviation between sessions is that of their medians, in
    which some of the launches' own noise is left: it errs to the safe side.
    """
    used = [session for state in states for session in state if len(session) >= 2]
    freedom = sum(len(session) - 1 for session in used)
    if not freedom:
        return None
    residuals = [session - np.median(session) for session in used]
    values = sum(len(session) for session in used)
    # Each session's median takes one of its residuals to nothing.
    small = float((values / (values - len(used))) ** 0.5)
    limit = _LIMIT * _NORMAL * float(np.median(np.abs(np.concatenate(residuals)))) * small
    if limit:
        residuals = [np.clip(residual, -limit, limit) for residual in residuals]
    squares = sum(float(residual @ residual) for residual in residuals)
    between, sessions = _between([[np.median(one) for one in state if len(one) >= 2] for state in states])
    return Noise(
        deviation=(squares / freedom) ** 0.5,
        freedom=freedom,
        inflation=_inflation(residuals, squares),
        between=between if sessions >= KNOWN else max(between, SESSION_SPREAD),
        sessions=sessions,
    )


def _between(states: Sequence[Sequence[np.floating]]) -> tuple[float, int]:
    """Return the standard deviation of the middles of each state's sessions, and its degrees of freedom."""
    repeated = [np.array(middles) for middles in states if len(middles) >= 2]
    freedom = sum(len(middles) - 1 for middles in repeated)
    squares = sum(float(((middles - middles.mean()) ** 2).sum()) for middles in repeated)
    return ((squares / freedom) ** 0.5 if freedom else 0.0), freedom


def _inflation(residuals: Sequence[Values], squares: float) -> float:
    if squares == 0:
        return 1.0
    values = sum(len(one) for one in residuals)
    lagged = sum(float(one[1:] @ one[:-1]) for one in residuals)
    # Around a group's own middle the correlation comes out too small by about one over the group's length.
    correlation = lagged / squares + len(residuals) / values
    limited = float(np.clip(correlation, 0.0, _MOST_CORRELATED))
    return (1 + limited) / (1 - limited)


_MOST_LAUNCHES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectableSlowdown:
    """The noise of one quantity at one layout (None: the curve), in parts of speed, efficiency or an epoch.

    `floor` is what noise alone seldom exceeds between 6 launches of a new session and as many as were measured.
    `launches_for` gives for a slowdown the launches (of each layout, in one session, against as many as were measured)
    from which it stands out, None where no number up to a hundred would do.
    """

    quantity: str
    layout: Layout | None
    launches: int
    sessions: int
    noise: Noise
    floor: float
    launches_for: dict[float, int | None]


def detectable_slowdowns(
    state: Measurement, others: Sequence[Measurement] = (), slowdowns: tuple[float, ...] = (0.05, 0.10)
) -> tuple[DetectableSlowdown, ...]:
    """Return the noise floor of every quantity that decides, from A/A launches of `state` and of `others`."""
    found = [sample for sample in samples(state, state, state.layouts) if sample.decides]
    same_code = [samples(one, state, one.layouts) for one in (state, *others) if one.layouts == state.layouts]
    rows = []
    for sample in found:
        noise = learn_noise([one.by_session for each in same_code for one in each if one.key == sample.key])
        if noise is not None:
            rows.append(_detectable(sample, noise, slowdowns, comparisons=len(found)))
    return tuple(rows)


def _detectable(sample: CostSample, noise: Noise, slowdowns: tuple[float, ...], comparisons: int) -> DetectableSlowdown:
    relative = sample.quantity in RELATIVE

    def floor(launches: int) -> float:
        return noise.floor(SampleSize(launches=launches, sessions=1), sample.size, comparisons)

    def needed(slowdown: float) -> int | None:
        cost = as_cost(slowdown, relative)
        return next((n for n in range(NEEDED, _MOST_LAUNCHES) if floor(n) < cost), None)

    return DetectableSlowdown(
        quantity=sample.quantity,
        layout=sample.layout,
        launches=len(sample.costs),
        sessions=len(sample.by_session),
        noise=noise,
        floor=as_slowdown(floor(NEEDED), relative),
        launches_for={slowdown: needed(slowdown) for slowdown in slowdowns},
    )
