"""What blocks of two variants in turns say: samples of each layout's step time, and the ratios that they give.

A block's number is the median of its rounds' log ratios, which no disturbed round moves; a second row of each layout
has the mean over all rounds, in which a slowdown of some epochs shows. Student's t holds over blocks only: every start
has a speed of its own, which its rounds share. The efficiency is shown and does not decide: it falls where a step on
more ranks became slower, which those rows find, or one on fewest ranks faster, which is no loss.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.confidence_intervals import Interval, mean_over_blocks, median_interval
from harness.analysis.sessions import EFFICIENCY, STEP
from harness.analysis.turn_blocks import block_steps, undisturbed_rounds, winsorise
from harness.regression.launch_comparison import ALIKE, BETTER, OPEN, WORSE, ComparedRow
from harness.regression.measurement import Values, as_cost, as_slowdown
from harness.schema.layout import Layout

MEAN = ", all rounds"
LOOKS = (3, 4, 6, 8, 12, 16)
"""The numbers of blocks after which the ratios are looked at; an interval over blocks needs 3."""
ERROR = 0.025  # on either side, over all rows and looks of a comparison


def launch_name(variant: int, layout: int) -> str:
    """Return what the launch of a variant on a layout is called in a block's turns, both by their numbers."""
    return f"{variant}-{layout}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSample:
    """One quantity over blocks: logarithms of a variant's time, or inverse efficiency, over the first one's.

    `blocks` [blocks] are judged, `rounds` [rounds of all blocks] must bear them out: by their median, or by their mean
    where the quantity is one of all rounds. `values` are what a reader sees of the first variant and of the other.
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
    """What two variants train: `layouts`, fewest ranks first, and the steps of an epoch [first and other, layouts].

    `variant` is the number of the one that is set beside the first, which is number 0.
    """

    layouts: tuple[Layout, ...]
    steps: tuple[tuple[int, ...], tuple[int, ...]]
    variant: int = 1
    scaling: str = "strong"

    @property
    def larger(self) -> list[int]:
        """The places of the layouts that have an efficiency over the first one."""
        return [place for place, layout in enumerate(self.layouts) if layout.ranks != self.layouts[0].ranks]

    def efficiency(self, seconds: Values) -> float:
        """Return the geometric mean of the efficiencies of `larger`, `seconds` [layouts] being those of an epoch."""
        ranks = np.array([self.layouts[place].ranks / self.layouts[0].ranks for place in self.larger])
        ideal = ranks if self.scaling == "strong" else np.ones(len(ranks))
        return float(np.exp(np.mean(np.log(seconds[0] / seconds[self.larger] / ideal))))


def block_samples(blocks: Sequence[pd.DataFrame], study: TurnsStudy) -> tuple[BlockSample, ...]:
    """Return the samples of `blocks`: the turns (see `turn_block.BlockEnd`) of launches named by `launch_name`.

    A block whose launches share no round is left out.
    """
    candidates = []
    for place in range(len(study.layouts)):
        candidates.append(_undisturbed_sample(blocks, study, place))
        candidates.append(_sample_of_all_rounds(blocks, study, place))
    if study.larger:
        candidates.append(_efficiency_sample(blocks, study))
    return tuple(sample for sample in candidates if sample is not None)


def _undisturbed_sample(blocks: Sequence[pd.DataFrame], study: TurnsStudy, place: int) -> BlockSample | None:
    """Return the medians of the undisturbed rounds of the layout at `place`, None where no block has such a round."""
    rounds = _step_seconds(blocks, study, [place])
    if not rounds:
        return None
    costs = [_log_costs(seconds, study, [place])[:, 0] for seconds in rounds]
    reference_s, variant_s = np.median([np.median(seconds[..., 0], axis=0) for seconds in rounds], axis=0)
    return BlockSample(
        quantity=STEP,
        layout=study.layouts[place],
        blocks=np.array([np.median(cost) for cost in costs]),
        rounds=np.concatenate(costs),
        values=(float(reference_s), float(variant_s)),
    )


def _sample_of_all_rounds(blocks: Sequence[pd.DataFrame], study: TurnsStudy, place: int) -> BlockSample | None:
    """Return Winsor's means of all rounds of the layout at `place`, None where no block has a round."""
    rounds = _step_seconds(blocks, study, [place], disturbed=True)
    if not rounds:
        return None
    costs = [winsorise(_log_costs(seconds, study, [place])[:, 0]) for seconds in rounds]
    reference_s, variant_s = np.median([np.mean(seconds[..., 0], axis=0) for seconds in rounds], axis=0)
    return BlockSample(
        quantity=STEP + MEAN,
        layout=study.layouts[place],
        blocks=np.array([np.mean(cost) for cost in costs]),
        rounds=np.concatenate(costs),
        values=(float(reference_s), float(variant_s)),
    )


def _efficiency_sample(blocks: Sequence[pd.DataFrame], study: TurnsStudy) -> BlockSample | None:
    """Return the efficiency of the curve in undisturbed rounds that all layouts share, which decides nothing."""
    places = range(len(study.layouts))
    rounds = _step_seconds(blocks, study, places)
    if not rounds:
        return None
    costs = [_log_costs(seconds, study, places) for seconds in rounds]
    curves = [cost[:, study.larger].mean(axis=1) - cost[:, 0] for cost in costs]
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


def _step_seconds(
    blocks: Sequence[pd.DataFrame], study: TurnsStudy, places: Iterable[int], *, disturbed: bool = False
) -> list[Values]:
    """Return the seconds of a step [rounds, both variants, places] of every block with rounds of both at all places."""
    names = [launch_name(variant, place) for variant in (0, study.variant) for place in places]
    seconds_of_blocks = []
    for turns in blocks:
        counted = turns if disturbed else undisturbed_rounds(turns, alike=False)
        steps = block_steps(counted).reindex(columns=names).dropna()
        if len(steps):
            seconds_of_blocks.append(steps.to_numpy().reshape(len(steps), 2, len(names) // 2))
    return seconds_of_blocks


def _log_costs(seconds: Values, study: TurnsStudy, places: Iterable[int]) -> Values:
    """Return the logarithm of the other variant's epoch over the first one's [rounds, places]."""
    steps = np.array(study.steps, dtype=float)[:, list(places)]
    costs: Values = np.log(seconds[:, 1] / seconds[:, 0]) + np.log(steps[1] / steps[0])
    return costs


def judge_samples(samples: Sequence[BlockSample], threshold: float, *, comparisons: int = 1) -> tuple[ComparedRow, ...]:
    """Return the row of each of `samples`, all of one variant beside the first; one of so many `comparisons`.

    The rows that decide, in all comparisons, and the `LOOKS` share the error by Bonferroni's inequality. A row is
    ``better`` or ``worse`` where Student's bound over blocks and the bound over all rounds leave out 0 on one side and
    the estimate is above the `threshold`, ``alike`` where both of Student's bounds are within it, else
    ``open``.
    """
    if not samples:
        return ()
    rows = sum(sample.decides for sample in samples) * comparisons
    level = 1 - 2 * ERROR / len(LOOKS) / rows
    return tuple(_row(sample, level, threshold) for sample in samples)


def _row(sample: BlockSample, level: float, threshold: float) -> ComparedRow:
    """Return the row of `sample`, whose bounds are of the `level`."""
    mean = mean_over_blocks(sample.blocks, level=level)
    interval = None
    meaning = OPEN
    if mean:
        interval = Interval(low=as_slowdown(mean.interval.low), high=as_slowdown(mean.interval.high))
        limit = as_cost(threshold)
        meaning = _meaning(mean.mean, mean.interval, _bounds_of_rounds(sample, level), limit)
    return ComparedRow(
        quantity=sample.quantity,
        layout=sample.layout,
        decides=sample.decides,
        values=sample.values,
        launches=(len(sample.blocks), len(sample.blocks)),
        slowdown=as_slowdown(float(sample.blocks.mean())),
        interval=interval,
        verdict=meaning,
    )


def _meaning(estimate: float, bounds: Interval, rounds: Interval, limit: float) -> str:
    """Return what an estimated cost means whose `bounds` over blocks are sure, and those over all `rounds`."""
    if bounds.low > 0 and rounds.low > 0 and estimate > limit:
        return WORSE
    if bounds.high < 0 and rounds.high < 0 and estimate < -limit:
        return BETTER
    return ALIKE if -limit < bounds.low and bounds.high < limit else OPEN


def _bounds_of_rounds(sample: BlockSample, level: float) -> Interval:
    """Return the bounds over all rounds: of their mean where the sample is one of all rounds, else of their median."""
    mean = mean_over_blocks(sample.rounds, level=level) if sample.is_of_all_rounds else None
    interval = mean.interval if mean else median_interval(sample.rounds, level=level)
    return interval or Interval(low=-np.inf, high=np.inf)
