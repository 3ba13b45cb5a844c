"""What blocks of two versions in turns say: samples of each layout's step time, and the verdict on each.

A block's number is the median of its rounds' log ratios, which no disturbed round moves; a second row of each layout
has the mean over all rounds, in which a slowdown of some epochs shows. Student's t holds over blocks only: every start
has a speed of its own, which its rounds share. The efficiency is told and does not decide: it falls where a step on
more ranks became slower, which those rows find, or one on fewest ranks faster, which is no regression.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.confidence_intervals import Interval, mean_over_blocks, median_interval
from harness.analysis.turn_blocks import block_steps, undisturbed_rounds, winsorise
from harness.regression.checks import INCONCLUSIVE, ComparedRow, verdict_of
from harness.regression.cost_samples import EFFICIENCY, STEP, Values, as_cost, as_slowdown
from harness.schema.layout import Layout

MEAN = ", mean of all rounds"
LOOKS = (3, 4, 6, 8, 12, 16)
"""The numbers of blocks after which a verdict is asked for; an interval over blocks needs 3."""
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

    @property
    def is_of_all_rounds(self) -> bool:
        """Whether it is of all rounds and not of the undisturbed ones alone."""
        return self.quantity.endswith(MEAN)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsStudy:
    """What both versions train: `layouts`, fewest ranks first, and the steps of an epoch [old and new, layouts]."""

    layouts: tuple[Layout, ...]
    steps: tuple[tuple[int, ...], tuple[int, ...]]
    scaling: str = "strong"

    @property
    def others(self) -> list[int]:
        """The places of the layouts that have an efficiency over the first one."""
        return [place for place, layout in enumerate(self.layouts) if layout.ranks != self.layouts[0].ranks]

    def efficiency(self, seconds: Values) -> float:
        """Return the geometric mean of the efficiencies of `others`, `seconds` [layouts] being those of an epoch."""
        ranks = np.array([self.layouts[place].ranks / self.layouts[0].ranks for place in self.others])
        ideal = ranks if self.scaling == "strong" else np.ones(len(ranks))
        return float(np.exp(np.mean(np.log(seconds[0] / seconds[self.others] / ideal))))


def block_samples(blocks: Sequence[pd.DataFrame], study: TurnsStudy) -> tuple[BlockSample, ...]:
    """Return the samples of `blocks`: the turns (see `turn_block.BlockEnd`) of launches called ``old-0``, ``new-0``...

    The number is the layout's place. A block whose launches share no round is left out.
    """
    candidates = []
    for place in range(len(study.layouts)):
        candidates.append(_undisturbed_sample(blocks, study, place))
        candidates.append(_sample_of_all_rounds(blocks, study, place))
    if study.others:
        candidates.append(_efficiency_sample(blocks, study))
    return tuple(sample for sample in candidates if sample is not None)


def _undisturbed_sample(blocks: Sequence[pd.DataFrame], study: TurnsStudy, place: int) -> BlockSample | None:
    """Return the medians of the undisturbed rounds of the layout at `place`, None where no block has such a round."""
    rounds = _step_seconds(blocks, [place])
    if not rounds:
        return None
    costs = [_log_costs(seconds, study, [place])[:, 0] for seconds in rounds]
    old, new = np.median([np.median(seconds[..., 0], axis=0) for seconds in rounds], axis=0)
    return BlockSample(
        quantity=STEP,
        layout=study.layouts[place],
        blocks=np.array([np.median(cost) for cost in costs]),
        rounds=np.concatenate(costs),
        values=(float(old), float(new)),
    )


def _sample_of_all_rounds(blocks: Sequence[pd.DataFrame], study: TurnsStudy, place: int) -> BlockSample | None:
    """Return Winsor's means of all rounds of the layout at `place`, None where no block has a round."""
    rounds = _step_seconds(blocks, [place], disturbed=True)
    if not rounds:
        return None
    costs = [winsorise(_log_costs(seconds, study, [place])[:, 0]) for seconds in rounds]
    old, new = np.median([np.mean(seconds[..., 0], axis=0) for seconds in rounds], axis=0)
    return BlockSample(
        quantity=STEP + MEAN,
        layout=study.layouts[place],
        blocks=np.array([np.mean(cost) for cost in costs]),
        rounds=np.concatenate(costs),
        values=(float(old), float(new)),
    )


def _efficiency_sample(blocks: Sequence[pd.DataFrame], study: TurnsStudy) -> BlockSample | None:
    """Return the efficiency of the curve in undisturbed rounds that all layouts share, which decides nothing."""
    places = range(len(study.layouts))
    rounds = _step_seconds(blocks, places)
    if not rounds:
        return None
    costs = [_log_costs(seconds, study, places) for seconds in rounds]
    curves = [cost[:, study.others].mean(axis=1) - cost[:, 0] for cost in costs]
    steps = np.array(study.steps, dtype=float)
    epoch_seconds = np.median([np.median(seconds, axis=0) for seconds in rounds], axis=0) * steps
    return BlockSample(
        quantity=EFFICIENCY,
        layout=None,
        blocks=np.array([np.median(curve) for curve in curves]),
        rounds=np.concatenate(curves),
        values=(study.efficiency(epoch_seconds[0]), study.efficiency(epoch_seconds[1])),
        decides=False,
    )


def _step_seconds(blocks: Sequence[pd.DataFrame], places: Iterable[int], *, disturbed: bool = False) -> list[Values]:
    """Return the seconds of a step [rounds, old and new, places] of every block with rounds of both at all `places`."""
    names = [f"{side}-{place}" for side in SIDES for place in places]
    seconds_of_blocks = []
    for turns in blocks:
        counted = turns if disturbed else undisturbed_rounds(turns, alike=False)
        steps = block_steps(counted).reindex(columns=names).dropna()
        if len(steps):
            seconds_of_blocks.append(steps.to_numpy().reshape(len(steps), 2, len(names) // 2))
    return seconds_of_blocks


def _log_costs(seconds: Values, study: TurnsStudy, places: Iterable[int]) -> Values:
    """Return the logarithm of the new version's epoch over the old one's [rounds, places]."""
    steps = np.array(study.steps, dtype=float)[:, list(places)]
    costs: Values = np.log(seconds[:, 1] / seconds[:, 0]) + np.log(steps[1] / steps[0])
    return costs


def judge_samples(samples: Sequence[BlockSample], practical: float) -> tuple[ComparedRow, ...]:
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
    """Return the row of `sample`, which shares the error of a look with all `rows` that decide."""
    look_level = 1 - 2 * ERROR / len(LOOKS)
    row_level = 1 - 2 * ERROR / len(LOOKS) / rows
    shared = mean_over_blocks(sample.blocks, level=row_level)
    alone = mean_over_blocks(sample.blocks, level=look_level)
    interval = None
    verdict = INCONCLUSIVE
    if shared and alone:
        upper = alone.interval.high
        interval = Interval(low=as_slowdown(shared.interval.low, True), high=as_slowdown(upper, True))
        verdict = verdict_of(
            shared.mean,
            shared.interval,
            as_cost(practical, True),
            upper=upper,
            rounds=_bounds_of_rounds(sample, row_level),
        )
    return ComparedRow(
        quantity=sample.quantity,
        layout=sample.layout,
        decides=sample.decides,
        values=sample.values,
        launches=(len(sample.blocks), len(sample.blocks)),
        slowdown=as_slowdown(float(sample.blocks.mean()), True),
        interval=interval,
        verdict=verdict,
    )


def _bounds_of_rounds(sample: BlockSample, level: float) -> Interval:
    """Return the bounds over all rounds: of their mean where the sample is one of all rounds, else of their median."""
    mean = mean_over_blocks(sample.rounds, level=level) if sample.is_of_all_rounds else None
    interval = mean.interval if mean else median_interval(sample.rounds, level=level)
    return interval or Interval(low=-np.inf, high=np.inf)
