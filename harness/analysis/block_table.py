"""One table of times, by block and layout, and what is estimated from it: a layout's time, and the base's over it.

A block is what is launched to be compared: launches in turns on the same cores, or a repeat of launches one after the
other. Estimates are means of logarithms over blocks, so that the ratio of two times is the mean of the blocks' ratios.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.comparison import (
    ComparableLaunches,
    LayoutLaunches,
    comparable,
    launches_by_layout,
    undisturbed_launches,
)
from harness.analysis.confidence_intervals import (
    BlockMean,
    Interval,
    Values,
    difference_of_means,
    mean_over_blocks,
)
from harness.analysis.turn_blocks import BlockTimes


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutTimes:
    """A layout's epoch time in seconds and the base's over it, with 95 % CIs, None for fewer than 3 blocks.

    `ratio` is of the `blocks` that have both layouts; of unrelated launches (0 blocks) it is that of all of them. It is
    None where the two did not do the same work. The base's own ratio is 1, without an interval.
    """

    seconds: float
    seconds_interval: Interval | None
    ratio: float | None
    ratio_interval: Interval | None
    blocks: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayoutCells:
    """The launches of one layout in a table: `rows`, their indices in its frame, and a number for each of them.

    These are `seconds`, of an epoch, and `log_ratio`, the logarithm of the base's time in the same block over this one,
    NaN where the block has none of it.
    """

    rows: pd.Index
    seconds: Values
    log_ratio: Values


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockTable:
    """The times of a comparison: `cells` by layout, those of the `base` among them. `unpaired` are the layouts whose
    launches are of the base's session and not of its blocks: no effect of a block is common to both, and they are
    compared as unrelated samples.
    """

    base: str
    cells: Mapping[str, LayoutCells]
    unpaired: frozenset[str]

    def times(self, layout: str, *, compared: bool = True) -> LayoutTimes:
        """Return the times of `layout`, the ratio where it is `compared`.

        The time is the base's over the ratio, so that both are of the same blocks also where some lack one.
        """
        log_seconds = self._log_seconds(layout)
        log_time = float(log_seconds.mean())
        log_ratio: float | None = None
        ratio_interval = None
        log_ratios = self._log_ratios(layout)
        is_paired = compared and layout != self.base and len(log_ratios) > 0
        if layout == self.base:
            log_ratio = 0.0
        elif compared:
            log_base = float(self._log_seconds(self.base).mean())
            log_ratio = float(log_ratios.mean()) if is_paired else log_base - log_time
            log_time = log_base - log_ratio
            ratio_interval = _as_factor(self._log_ratio_interval(layout))
        spread = mean_over_blocks(log_seconds)
        around = BlockMean(mean=log_time, reach=spread.reach) if spread else None
        return LayoutTimes(
            seconds=math.exp(log_time),
            seconds_interval=_as_factor(around),
            ratio=None if log_ratio is None else math.exp(log_ratio),
            ratio_interval=ratio_interval,
            blocks=len(log_ratios) if is_paired else 0,
        )

    def _log_seconds(self, layout: str) -> Values:
        log_seconds: Values = np.log(self.cells[layout].seconds)
        return log_seconds

    def _log_ratios(self, layout: str) -> Values:
        log_ratios = self.cells[layout].log_ratio
        return log_ratios[~np.isnan(log_ratios)]

    def _log_ratio_interval(self, layout: str) -> BlockMean | None:
        """Return the mean and reach of the logarithmic ratio: paired differences, else of unrelated samples."""
        if layout in self.unpaired:
            return difference_of_means(self._log_seconds(self.base), self._log_seconds(layout))
        return mean_over_blocks(self._log_ratios(layout))


def _as_factor(mean: BlockMean | None) -> Interval | None:
    """Return the interval of which the one of `mean` is the logarithm."""
    if mean is None:
        return None
    return Interval(low=math.exp(mean.interval.low), high=math.exp(mean.interval.high))


def trained_in_turns(launches: pd.DataFrame) -> bool:
    """Return whether all `launches`, rows of `launch_frame`, have times of turns."""
    return bool(launches["ran_seconds"].notna().all())


def block_table(launches: pd.DataFrame, base: str, *, as_it_ran: bool = False) -> BlockTable:
    """Return the table of the valid `launches` (`launch_frames.launch_frame`) over those of the layout `base`.

    Of launches in turns the times are those excluding contended rounds, or with `as_it_ran` those of all rounds.
    """
    in_turns = trained_in_turns(launches)
    if not as_it_ran:
        launches = undisturbed_launches(launches)
    seconds = launches["ran_seconds" if as_it_ran else "seconds"].to_numpy(dtype=float)
    groups = launches_by_layout(launches)
    turns = _Turns(launches, groups[base], as_it_ran=as_it_ran) if in_turns else None
    unpaired = set()
    cells = {}
    for layout, group in groups.items():
        if turns:
            log_ratios = turns.log_ratios(group)
        else:
            pair = comparable(groups[base], group)
            log_ratios = _log_ratios_of_repeats(pair, group, seconds)
            if pair is not None and not pair.paired:
                unpaired.add(layout)
        cells[layout] = LayoutCells(
            rows=launches.index[group.places], seconds=seconds[group.places], log_ratio=log_ratios
        )
    return BlockTable(base=base, cells=cells, unpaired=frozenset(unpaired))


def _log_ratios_of_repeats(pair: ComparableLaunches | None, group: LayoutLaunches, seconds: Values) -> Values:
    """Return by launch of `group` the logarithm of the base's time in its repeat over its own, NaN without a pair."""
    if pair is None or not pair.paired:
        return np.full(len(group.places), math.nan)
    base_seconds = dict(zip(pair.base.repeats.tolist(), seconds[pair.base.places], strict=True))
    of_repeat = np.array([base_seconds.get(repeat, math.nan) for repeat in group.repeats.tolist()])
    log_ratios: Values = np.log(of_repeat / seconds[group.places])
    return log_ratios


class _Turns:
    """The launches of a frame that trained in turns, beside the base's in the same blocks."""

    def __init__(self, launches: pd.DataFrame, base: LayoutLaunches, *, as_it_ran: bool) -> None:
        self._runs = launches["run"].to_numpy()
        self._blocks = launches["turn_block"].to_numpy()
        self._steps = launches["steps"].to_numpy()
        self._as_it_ran = as_it_ran
        self._base_blocks = {self._runs[place]: id(self._blocks[place]) for place in base.places}
        self._base_steps = float(self._steps[base.places[0]])

    def log_ratios(self, group: LayoutLaunches) -> Values:
        """Return by launch of `group` the logarithm of the base's epoch time over its own in its block of turns.

        NaN for a block in which the base's launch was not valid.
        """
        log_steps = math.log(self._base_steps / float(self._steps[group.places[0]]))
        log_ratios = np.full(len(group.places), math.nan)
        for number, place in enumerate(group.places):
            block = self._blocks[place]
            base_launch = _base_launch(block, self._base_blocks)
            if base_launch:
                ratio = self._step_s(block, base_launch) / self._step_s(block, self._runs[place])
                log_ratios[number] = math.log(ratio) + log_steps
        return log_ratios

    def _step_s(self, block: BlockTimes, launch: str) -> float:
        return block.as_it_ran[launch] if self._as_it_ran else block.step_seconds(launch)


def _base_launch(block: BlockTimes, base_blocks: Mapping[str, int]) -> str:
    """Return the valid launch of the base in `block`, an empty text where there is none.

    `base_blocks` has by launch the identity of its own block. A block's base may have its record of another block, and
    so may a launch that was made again, whose turns here do not count.
    """
    for launch, own_block in base_blocks.items():
        if block.has(launch) and (launch == block.base or own_block == id(block)):
            return launch
    return ""
