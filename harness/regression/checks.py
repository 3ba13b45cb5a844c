"""Did it get worse? A verdict for each point and for the curve, and for all of it together; comparisons without one.

Hodges & Lehmann (1963) estimate the shift between two samples by the median of all pairwise differences. Its interval
inverts the Wilcoxon-Mann-Whitney test: two of the ordered differences, chosen by the exact distribution of U
(Hollander, Wolfe & Chicken, *Nonparametric Statistical Methods*, 3rd ed., section 4.3). No assumption on the shape of
the noise, and up to a quarter of wild values moves neither much.

Two versions that trained in turns: a block's number is the median of its rounds' log ratios, which no disturbed round
moves; a second row of each layout has the mean over all rounds, in which a slowdown of some epochs shows. Student's t
holds over blocks only: every start has a speed of its own, which its rounds share. The efficiency is told and does
not decide: it falls where a step on more ranks became slower, which those rows find, or one on fewest ranks faster,
which is no regression.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isclose

import numpy as np
import pandas as pd
from scipy.stats import binom, norm
from scipy.stats import t as student

from harness.analysis.numbers import plural
from harness.analysis.stats import LEVEL, NEEDED, Interval, block_rounds, sessions, winsorise
from harness.regression.baselines import Measurement
from harness.regression.quantities import EFFICIENCY, RELATIVE, STEP, CostSample, Values, as_cost, as_slowdown, samples
from harness.schema.sweep import Layout

PASS = "pass"
SMALL = "small slowdown"
REGRESSION = "regression"
IMPROVEMENT = "improvement"
INCONCLUSIVE = "inconclusive"
BETTER = "better"
WORSE = "worse"
ALIKE = "alike"
OPEN = "open"

PRACTICAL = 0.03
_EXACT = 60  # values in a sample up to which a distribution is counted; then the normal one serves


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """One quantity at one layout (None: the curve): what it was (the reference) and what it is (the current one).

    `slowdown` above 0 is worse; a fraction of speed or efficiency, or of the reference's epoch. `interval` is on the
    same scale, None where launches lack. `values` and `launches` (in turns: blocks) are the reference's and the current
    ones. Only rows that `decide` can fail a check. `apart`: they were launched in different sessions, which may differ
    by more than the code.
    """

    quantity: str
    layout: Layout | None
    decides: bool
    values: tuple[float, float]
    launches: tuple[int, int]
    slowdown: float
    interval: Interval | None
    verdict: str = ""
    apart: bool = False

    @property
    def ratio(self) -> float:
        """How many times as good the current value of a `RELATIVE` quantity is: above 1 is faster, more efficient."""
        return 1 - self.slowdown

    @property
    def ratio_interval(self) -> Interval | None:
        """The interval of `ratio`."""
        return Interval(low=1 - self.interval.high, high=1 - self.interval.low) if self.interval else None


def row_of_launches(
    before: CostSample, now: CostSample, *, comparisons: int = 1, practical: float = PRACTICAL, apart: bool = False
) -> ComparedRow:
    """Return the row of two samples of launches, one of `comparisons`; no interval where they were launched `apart`."""
    distance, relative = shift(now.costs, before.costs), before.quantity in RELATIVE
    found = None if apart else shift_interval(now.costs, before.costs, 1 - (1 - LEVEL) / comparisons)
    interval = verdict = None
    if found is not None and min(len(now.costs), len(before.costs)) >= NEEDED:
        interval = Interval(low=as_slowdown(found.low, relative), high=as_slowdown(found.high, relative))
        limit = as_cost(practical, relative)
        verdict = verdict_of(distance, found, limit)
    return ComparedRow(
        quantity=before.quantity,
        layout=before.layout,
        decides=before.decides,
        values=(before.value, now.value),
        launches=(len(before.costs), len(now.costs)),
        slowdown=as_slowdown(distance, relative),
        interval=interval,
        verdict=verdict or INCONCLUSIVE,
        apart=apart,
    )


def verdict_of(
    estimate: float, bounds: Interval, limit: float, *, upper: float | None = None, borne: Interval | None = None
) -> str:
    """Return what an estimated cost means whose `bounds` are sure, and beside which `limit` is a practical one.

    A change has to be `borne` out by other bounds too, where there are some; a pass is decided by `upper` where that is
    another bound.
    """
    sure = borne or bounds
    if bounds.low > 0 and sure.low > 0 and estimate > limit:
        return REGRESSION
    if bounds.high < 0 and sure.high < 0 and estimate < -limit:
        return IMPROVEMENT
    if (bounds.high if upper is None else upper) < limit:
        return SMALL if bounds.low > 0 else PASS
    return INCONCLUSIVE


def shift(current: Values, reference: Values) -> float:
    """Return by how much `current` lies above `reference` (both at least one value)."""
    return float(np.median(np.subtract.outer(current, reference)))


def shift_interval(current: Values, reference: Values, level: float) -> Interval | None:
    """Return the two-sided interval of the shift with coverage of at least `level`, None with too few values."""
    count = tail_count(len(current), len(reference), (1 - level) / 2)
    if count is None:
        return None
    differences = np.sort(np.subtract.outer(current, reference), axis=None)
    return Interval(low=float(differences[count]), high=float(differences[-1 - count]))


@functools.cache
def tail_count(n: int, m: int, tail: float) -> int | None:
    """Return how many ordered differences may be left out at each end, None where even none is too many.

    The largest c with P(U <= c) <= `tail` for samples of `n` and `m` values; counted up to `_EXACT` values, above by
    the normal distribution.
    """
    if min(n, m) < 1:
        return None
    if max(n, m) > _EXACT:
        count = int(np.floor(n * m / 2 + norm.ppf(tail) * (n * m * (n + m + 1) / 12) ** 0.5 - 0.5))
        return count if count >= 0 else None
    # The orders of n + m values with U = 0, 1, ..., n * m (Mann & Whitney 1947, their recurrence): the coefficients of
    # the Gaussian binomial, the product of (1 - q^(m+i)) / (1 - q^i) for i = 1..n.
    counts = np.zeros(n * m + 1)
    counts[0] = 1
    for i in range(1, n + 1):
        up = m + i
        if up <= n * m:
            counts[up:] = counts[up:] - counts[:-up]
        for start in range(i, n * m + 1):
            counts[start] += counts[start - i]
    below = np.cumsum(counts)
    allowed = int(np.searchsorted(below / below[-1], tail, side="right"))
    return allowed - 1 if allowed else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsSpent:
    """What a check in turns took. `epochs` are those of its launches where they are more than the study's, else 0."""

    blocks: int
    rounds: int
    minutes: float
    epochs: int = 0

    def __str__(self) -> str:
        blocks, rounds = plural(self.blocks, "block"), plural(self.rounds, "round")
        longer = f", launches of {self.epochs} epochs" if self.epochs else ""
        return f"{blocks}, {rounds}, {self.minutes:.1f} minutes{longer}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A reference, what is compared with it, and the verdicts; a slowdown below `practical` makes no difference.

    `spent` is None where launches were compared that did not train in turns.
    """

    reference: Measurement
    current: Measurement
    practical: float
    rows: tuple[ComparedRow, ...]
    spent: TurnsSpent | None = None

    @property
    def unmeasured(self) -> tuple[Layout, ...]:
        """The reference's layouts that have no launch now."""
        return tuple(layout for layout in self.reference.layouts if not self.current.of(layout))

    @property
    def apart(self) -> bool:
        """Whether the two were launched in different sessions, which cannot tell the code from the machine."""
        return any(row.apart for row in self.rows)

    @property
    def deciding(self) -> tuple[ComparedRow, ...]:
        """The rows that can fail the check."""
        return tuple(row for row in self.rows if row.decides)

    @property
    def verdict(self) -> str:
        """The worst of the deciding rows: a regression first, then what is open, a small slowdown, an improvement."""
        verdicts = {row.verdict for row in self.deciding}
        if REGRESSION in verdicts:
            return REGRESSION
        if INCONCLUSIVE in verdicts or self.unmeasured or not verdicts:
            return INCONCLUSIVE
        return next((one for one in (SMALL, IMPROVEMENT) if one in verdicts), PASS)


def check_launches(reference: Measurement, current: Measurement, *, practical: float = PRACTICAL) -> Check:
    """Return the verdicts on `current` against `reference`, both of the same workload and machine.

    Launches of one session are judged; those of different ones cannot tell. What drifts within the session counts as
    launches that scatter.
    """
    shared = [layout for layout in reference.layouts if current.of(layout)]
    pairs = _pairs(reference, current, shared) if shared else []
    comparisons, apart = sum(one.decides for one, _ in pairs), _apart(reference, current)
    rows = tuple(
        row_of_launches(before, now, comparisons=comparisons, practical=practical, apart=apart) for before, now in pairs
    )
    return Check(reference=reference, current=current, practical=practical, rows=rows)


def compare_measurements(
    first: Measurement, other: Measurement, *, practical: float = PRACTICAL
) -> tuple[ComparedRow, ...]:
    """Return time and efficiency of `other` over `first` at every layout that both launched, each row judged alone.

    They may differ in anything but the rows of an epoch: layouts where these differ are left out. A verdict is
    ``better`` or ``worse`` where the interval leaves out 0 and the ratio is of a `practical` size, ``alike`` where the
    whole interval is within it, else ``open``, as it is for launches of different sessions.
    """
    shared = [
        layout
        for layout in first.layouts
        if other.of(layout) and isclose(first.of(layout)[0].rows, other.of(layout)[0].rows, rel_tol=0.01)
    ]
    apart = _apart(first, other)
    rows = []
    for before, now in _pairs(first, other, shared) if shared else []:
        if before.quantity in RELATIVE:
            row = row_of_launches(before, now, practical=practical, apart=apart)
            rows.append(replace(row, verdict=_meaning(row, practical)))
    return tuple(rows)


def _apart(one: Measurement, other: Measurement) -> bool:
    """Return whether the launches of both are of more than one session."""
    return len(set(sessions([(launch.started, launch.ended) for launch in (*one.launches, *other.launches)]))) > 1


def _meaning(row: ComparedRow, practical: float) -> str:
    interval = row.ratio_interval
    if interval is None:
        return OPEN
    low, high = 1 / (1 + practical), 1 + practical
    if low <= interval.low and interval.high <= high:
        return ALIKE
    if interval.low > 1 and row.ratio > high:
        return BETTER
    if interval.high < 1 and row.ratio < low:
        return WORSE
    return OPEN


def _pairs(
    reference: Measurement, current: Measurement, shared: Sequence[Layout]
) -> list[tuple[CostSample, CostSample]]:
    before, now = (samples(one, reference, shared) for one in (reference, current))
    return [(one, other) for one in before for other in now if one.key == other.key]


MEAN = ", mean of all rounds"
LOOKS = (3, 4, 6, 8, 12, 16)  # blocks
ERROR = 0.025  # on either side, over all rows and looks of a check
SIDES = ("old", "new")


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSample:
    """One quantity over blocks: logarithms of the new version's time, or inverse efficiency, over the old one's.

    `blocks` [blocks] are judged, `rounds` [rounds of all blocks] must bear them out: by their median, or by their mean
    where the quantity is one of all rounds. `values` are what a reader sees of the old and the new version.
    """

    quantity: str
    layout: Layout | None
    blocks: Values
    rounds: Values
    values: tuple[float, float]
    decides: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsStudy:
    """What both versions train: `layouts`, fewest ranks first, and the steps of an epoch [old and new, layouts]."""

    layouts: tuple[Layout, ...]
    steps: tuple[tuple[int, ...], tuple[int, ...]]
    scaling: str = "strong"

    @property
    def others(self) -> list[int]:
        """The places of the layouts that have an efficiency over the first one."""
        return [place for place, one in enumerate(self.layouts) if one.ranks != self.layouts[0].ranks]

    def efficiency(self, seconds: Values) -> float:
        """Return the geometric mean of the efficiencies of `others`, `seconds` [layouts] being those of an epoch."""
        ranks = np.array([self.layouts[place].ranks / self.layouts[0].ranks for place in self.others])
        ideal = ranks if self.scaling == "strong" else np.ones(len(ranks))
        return float(np.exp(np.mean(np.log(seconds[0] / seconds[self.others] / ideal))))


def block_samples(blocks: Sequence[pd.DataFrame], study: TurnsStudy) -> tuple[BlockSample, ...]:
    """Return the samples of `blocks`: the turns (see `sweep.block.BlockEnd`) of launches called ``old-0``, ``new-0``...

    The number is the layout's place. A block whose launches share no round is left out.
    """
    found = []
    steps = np.array(study.steps, dtype=float)
    work = np.log(steps[1] / steps[0])
    for place, layout in enumerate(study.layouts):
        for mean in (False, True):
            rounds = [_seconds(turns, (place,), disturbed=mean)[..., 0] for turns in blocks]
            rounds = [one for one in rounds if len(one)]
            if not rounds:
                continue
            parts = [np.log(one[:, 1] / one[:, 0]) + work[place] for one in rounds]
            if mean:
                parts = [winsorise(part) for part in parts]
            middle = np.mean if mean else np.median
            old, new = np.median([middle(one, axis=0) for one in rounds], axis=0)
            found.append(
                BlockSample(
                    quantity=STEP + (MEAN if mean else ""),
                    layout=layout,
                    blocks=np.array([middle(part) for part in parts]),
                    rounds=np.concatenate(parts),
                    values=(float(old), float(new)),
                )
            )
    whole = [one for one in (_seconds(turns, range(len(study.layouts))) for turns in blocks) if len(one)]
    if study.others and whole:
        seconds = np.median([np.median(one, axis=0) for one in whole], axis=0) * steps
        costs = [np.log(one[:, 1] / one[:, 0]) + work for one in whole]
        curves = [cost[:, study.others].mean(axis=1) - cost[:, 0] for cost in costs]
        found.append(
            BlockSample(
                quantity=EFFICIENCY,
                layout=None,
                blocks=np.array([np.median(curve) for curve in curves]),
                rounds=np.concatenate(curves),
                values=(study.efficiency(seconds[0]), study.efficiency(seconds[1])),
                decides=False,
            )
        )
    return tuple(found)


def _seconds(turns: pd.DataFrame, places: Iterable[int], *, disturbed: bool = False) -> Values:
    """Return the seconds of a step [rounds, old and new, places] of the rounds in which both had turns at `places`."""
    names = [f"{side}-{place}" for side in SIDES for place in places]
    steps = block_rounds(turns, disturbed=disturbed).steps.reindex(columns=names).dropna()
    found: Values = steps.to_numpy().reshape(len(steps), 2, len(names) // 2)
    return found


def judge(samples: Sequence[BlockSample], practical: float) -> tuple[ComparedRow, ...]:
    """Return the row of each of `samples`, all of one check; those that decide share the error, and `LOOKS` do.

    It is shared by Bonferroni's inequality.

    A regression needs three things: Student's bound over blocks above 0, the bound over all rounds above 0, and an
    estimate above the `practical` slowdown. A pass needs Student's upper bound below it, where a slowdown that is sure
    is called small. As a check passes only by all its rows, the upper bound of each has the whole error of a look
    (Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24, 1982).
    """
    rows = sum(sample.decides for sample in samples)
    return tuple(_row(sample, rows, practical) for sample in samples)


def _row(sample: BlockSample, rows: int, practical: float) -> ComparedRow:
    whole = ERROR / len(LOOKS)
    chance = whole / rows
    blocks, estimate = sample.blocks, float(sample.blocks.mean())
    bounds = _student(blocks, chance) if len(blocks) >= LOOKS[0] else None
    verdict, interval = INCONCLUSIVE, None
    if bounds is not None:
        interval = Interval(low=bounds.low, high=_student(blocks, whole).high)
        borne = _student(sample.rounds, chance) if sample.quantity.endswith(MEAN) else _exact(sample.rounds, chance)
        verdict = verdict_of(estimate, bounds, as_cost(practical, True), upper=interval.high, borne=borne)
    return ComparedRow(
        quantity=sample.quantity,
        layout=sample.layout,
        decides=sample.decides,
        values=sample.values,
        launches=(len(blocks), len(blocks)),
        slowdown=as_slowdown(estimate, True),
        interval=interval
        and Interval(low=as_slowdown(interval.low, relative=True), high=as_slowdown(interval.high, relative=True)),
        verdict=verdict,
    )


def _student(values: Values, chance: float) -> Interval:
    """Return Student's bounds of the mean, each wrong with `chance`."""
    reach = _quantile(chance, len(values) - 1) * float(values.std(ddof=1)) / len(values) ** 0.5
    return Interval(low=float(values.mean()) - reach, high=float(values.mean()) + reach)


def _exact(values: Values, chance: float) -> Interval:
    """Return bounds of the median, each wrong with `chance` at most: order statistics, by the binomial distribution."""
    place = _place(chance, len(values))
    if place < 1:
        return Interval(low=-np.inf, high=np.inf)
    ordered = np.sort(values)
    return Interval(low=float(ordered[place - 1]), high=float(ordered[-place]))


@functools.cache
def _quantile(chance: float, freedom: int) -> float:
    return float(student.isf(chance, freedom))


@functools.cache
def _place(chance: float, size: int) -> int:
    return int(binom.ppf(chance, size, 0.5))
