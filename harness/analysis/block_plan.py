"""How many blocks a sweep makes, and how long each trains: by the width of its intervals, the time left, and variances.

Neither looks at the estimate itself: of normal values, mean and variance are independent, so that a number of blocks
that follows from their variance leaves an interval its coverage (Stein, "A Two-Sample Test for a Linear Hypothesis
Whose Power is Independent of the Variance", Annals of Mathematical Statistics 16, 1945). How long blocks train is
sampling in two stages with the cost of each: Cochran, "Sampling Techniques" (3rd edition, 1977), section 10.6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.confidence_intervals import FEWEST_BLOCKS, expected_reach, student_reach
from harness.analysis.turn_blocks import BlockTimes
from harness.schema.sweep import USUAL_MINUTES, USUAL_WIDTH

SHORTEST_S, LONGEST_S = 3.0, 60.0
"""Seconds of rounds that a block is given at least and at most."""

_LOOKS = (3, 6, 9, 12, 18, 24, 36, 48, 72, 96, 144, 192)  # blocks after which it is asked whether intervals are narrow
_CONFIRMING = 2  # blocks that are made after they were
_ENOUGH_BLOCKS = 6  # intervals of fewer must be half as wide
_START_VARIANCE = 0.008**2  # between blocks of a quiet machine: every start has a speed of its own, 0.7 to 1 %
_START_FREEDOM = 4  # the weight of that beside what a few blocks show


@dataclass(frozen=True, kw_only=True, slots=True)
class EndRule:
    """A sweep ends when half the width of its intervals is `width` (of the logarithm), or after `budget_s` seconds."""

    width: float = USUAL_WIDTH
    budget_s: float = 60 * USUAL_MINUTES

    def next_repeats(self, reach: float, repeats: int, seconds: float, *, repeat_s: float = 0.0) -> int:
        """Return how many repeats a sweep shall have of which `repeats` took `seconds`: the same number where it ends.

        `reach` is half the width of its widest speedup's interval, of the logarithm. A further repeat takes `repeat_s`
        seconds, 0 where only something else ends the sweep. To stop where an interval happens to be narrow costs some
        of its coverage. So two more blocks are made after it is narrow, and intervals of few blocks must be the
        narrower: of intervals of 95 %, 93 to 95 % hold the truth, by simulation (tests/analysis/test_block_plan.py).
        """
        if repeats - _CONFIRMING in _LOOKS:
            return repeats
        narrow = self.width if repeats >= _ENOUGH_BLOCKS else self.width / 2
        wanted = repeats + _CONFIRMING
        if reach > narrow:
            wanted = min((look for look in _LOOKS if look > repeats), default=repeats)
        if repeat_s > 0:
            wanted = min(wanted, repeats + int(max(0.0, self.budget_s - seconds) / repeat_s))
        return max(repeats, wanted)

    def blocks_for_width(self, reach: float, repeats: int) -> int | None:
        """Return how many more blocks would make the interval so narrow, None where no sensible number would."""
        for blocks in range(repeats, _LOOKS[-1] + 1):
            if expected_reach(reach, repeats, blocks) <= self.width:
                return blocks - repeats
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioSample:
    """What one block says of one ratio: its logarithm `log_ratio`, from rounds that lasted `seconds`.

    `error` is the variance of that mean by the scatter of the block's rounds alone.
    """

    log_ratio: float
    error: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSpread:
    """The two variances of a block's logarithmic ratio, of the same machine state.

    `within` is that of one second of rounds, which falls with the seconds; `between` is that of starts, which does not.
    """

    within: float
    between: float

    def of_block(self, seconds: float) -> float:
        """Return the variance of a block whose rounds last `seconds`."""
        return self.between + self.within / seconds


def block_samples(launches: pd.DataFrame, layout: str) -> list[RatioSample]:
    """Return what each block says of the speedup of `layout`; `launches` is `launch_frames.launch_frame`.

    Of blocks without times excluding contended rounds it is not known how much their rounds scatter.
    """
    samples = []
    rows = launches[launches["valid"] & (launches["layout"] == layout)]
    for launch, block in zip(rows["run"], rows["turn_block"], strict=True):
        if not isinstance(block, BlockTimes) or launch not in block.round_errors:
            continue
        log_ratio = math.log(block.undisturbed[block.base] / block.undisturbed[launch])
        samples.append(RatioSample(log_ratio=log_ratio, error=block.round_errors[launch], seconds=block.seconds))
    return samples


def spread_of(blocks: Sequence[RatioSample]) -> BlockSpread | None:
    """Return the variances that `blocks` show, None of fewer than 3, or of rounds without scatter.

    What few blocks show of the variance between them is uncertain: it is joined with what a quiet machine has, by
    degrees of freedom.
    """
    if len(blocks) < FEWEST_BLOCKS:
        return None
    within = float(np.mean([block.error * block.seconds for block in blocks]))
    if not within > 0:
        return None
    freedom = len(blocks) - 1
    total = float(np.var([block.log_ratio for block in blocks], ddof=1))
    of_rounds = float(np.mean([block.error for block in blocks]))
    between = (freedom * (total - of_rounds) + _START_FREEDOM * _START_VARIANCE) / (freedom + _START_FREEDOM)
    return BlockSpread(within=within, between=max(between, 0.0))


def best_seconds(spread: BlockSpread, *, start_s: float, left_s: float, blocks: int, seconds_so_far: float) -> float:
    """Return the seconds of rounds that make an interval narrowest, of the blocks that `left_s` seconds hold.

    Each costs `start_s` seconds beside its rounds; `blocks` are there, whose rounds took `seconds_so_far` each. Where
    very many follow, this is Cochran's root of the ratio of costs times that of variances; where few do, blocks are
    shorter and more, for Student's t.
    """
    choices = np.geomspace(SHORTEST_S, LONGEST_S, 40)
    variance_so_far = blocks * spread.of_block(seconds_so_far)
    reaches = []
    for seconds in choices:
        more = max(left_s, start_s + LONGEST_S) / (start_s + seconds)
        variance = (variance_so_far + more * spread.of_block(seconds)) / (blocks + more)
        reaches.append(student_reach(math.sqrt(variance), blocks + more))
    return float(choices[int(np.argmin(reaches))])
