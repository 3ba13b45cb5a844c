"""Two versions that trained in turns: by how much each quantity differs over the blocks, and what that means.

A block's number is the median of its rounds' log ratios, which no disturbed round moves; a second row of each layout
has the mean over all rounds, in which a slowdown of some epochs shows. Student's t holds over blocks only: every start
has a speed of its own, which its rounds share. The efficiency is told and does not decide: it falls where a step on
more ranks became slower, which those rows find, or one on fewest ranks faster, which is no regression.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import binom
from scipy.stats import t as student

from harness.analysis.rounds import block_rounds, winsorise
from harness.analysis.stats import Interval
from harness.regression.checks import INCONCLUSIVE, ComparedRow, verdict_of
from harness.regression.quantities import EFFICIENCY, STEP, Values, as_cost, as_slowdown
from harness.schema.layout import Layout

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
