"""What trained in turns, compared within blocks: the sample is the block, one log ratio of its rounds.

Rounds of one block alone decide nothing: every start of a launch has a speed of its own (0.7 to 1 % on a virtual
machine), which its rounds share. Over blocks Student's t of their numbers holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t as student

from harness.analysis.stats import LEVEL, Interval
from harness.schema.sweep import ROUNDS

FEWEST_BLOCKS = 3
_UNDISTURBED = 0.95
_BUSY = 0.9  # cores
_FEWEST_STEPS = 5  # of a turn; a turn that met the end of an epoch may be shorter
_QUIET = 0.25  # the quantile of a launch's turns that is its time
_TAIL = 0.1  # of a block's rounds, on either side, which count as the next one within


@dataclass(frozen=True, slots=True, eq=False)
class BlockRounds:
    """A block's seconds per step, float64, one row a round and one column a launch; NaN where it had no turn."""

    steps: pd.DataFrame

    def both(self, first: str, second: str) -> pd.DataFrame:
        """Return the rounds in which both had a turn."""
        return self.steps.reindex(columns=[first, second]).dropna()

    def log_ratios(self, first: str, second: str) -> NDArray[np.float64]:
        """Return the logarithms of `first`'s step times over `second`'s, of the rounds in which both had a turn."""
        both = self.both(first, second)
        ratios: NDArray[np.float64] = np.log(both[first].to_numpy() / both[second].to_numpy())
        return ratios

    def undisturbed(self, first: str, second: str) -> float | None:
        """Return the logarithm of `first`'s step time over `second`'s, the lower quartile of the turns of each.

        That is what a step takes where nothing meets it. What cannot be seen from inside, such as another virtual
        machine on the same physical cores, lasts for seconds and slows one launch or the other by a third, by chance.
        None without a round in which both had one.
        """
        both = self.both(first, second).quantile(_QUIET)
        return None if both.isna().any() else math.log(both[first] / both[second])


def block_rounds(turns: pd.DataFrame, *, disturbed: bool = False) -> BlockRounds:
    """Return the rounds of a block's `turns` (see `harness.sweep.block.BlockEnd`), without `disturbed` ones.

    A turn in which a rank had clearly less of its core than in most turns of its launch was disturbed by others, where
    its ranks keep their cores busy: one that waits asleep says nothing of others. A turn that is cut short has no time;
    where steps are long, the turns of a launch have three.
    """
    by_launch = turns.groupby("launch")
    fewest = by_launch["steps"].transform("median").clip(upper=_FEWEST_STEPS)
    usual = by_launch["cores"].transform("quantile", 0.75)
    calm = disturbed | (turns["cores"] >= _UNDISTURBED * usual) | (usual < _BUSY)
    long = turns[(turns["steps"] >= fewest) & calm]
    seconds = long.assign(step=long["seconds"] / long["steps"])
    return BlockRounds(seconds.pivot(index="round", columns="launch", values="step"))


def winsorise(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `ratios` for Winsor's mean: a tenth of them on either side counts as the next one within.

    Of two states that last for seconds, such as a core that a neighbouring virtual machine has a part of, a mean has
    its part of each, where a median would be that of one of them or the other, by chance.
    """
    clipped: NDArray[np.float64] = np.clip(ratios, *np.quantile(ratios, (_TAIL, 1 - _TAIL)))
    return clipped


def read_rounds(folder: Path, block: str) -> BlockRounds | None:
    """Return the rounds of a `block` of the sweep in `folder`, its launches by their layouts; None without them."""
    path = folder / ROUNDS / f"{block}.parquet"
    try:
        turns = pd.read_parquet(path)
        return block_rounds(turns.assign(launch=turns["launch"].map(launch_layout)))
    except (OSError, ValueError, KeyError):  # a file that is missing, cut or another program's
        return None


def launch_layout(launch: str) -> str:
    """Return what of a launch's folder's name (`Point.folder`) says its layout."""
    return launch.rsplit("-", 2)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRatio:
    """A ratio over blocks: the mean of their log ratios, as a factor, and its 95 % interval."""

    ratio: float
    interval: Interval
    blocks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockMean:
    """A mean over blocks, and half the width of its interval."""

    mean: float
    reach: float


def over_blocks(values: Sequence[float], *, level: float = LEVEL) -> BlockMean | None:
    """Return the mean of the blocks' `values` and the reach of Student's two-sided interval; None for fewer than 3."""
    if len(values) < FEWEST_BLOCKS:
        return None
    reach = student.ppf(0.5 + level / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return BlockMean(mean=float(np.mean(values)), reach=float(reach))


def ratio_over_blocks(ratios: Sequence[float], *, level: float = LEVEL) -> BlockRatio | None:
    """Return the ratio of which `ratios` are the blocks' logarithms, one each; None for fewer than 3.

    The interval is Student's, of the logarithms; two-sided with probability `level`.
    """
    found = over_blocks(ratios, level=level)
    if found is None:
        return None
    return BlockRatio(
        ratio=math.exp(found.mean),
        interval=Interval(low=math.exp(found.mean - found.reach), high=math.exp(found.mean + found.reach)),
        blocks=len(ratios),
    )


def layout_ratio(base: pd.DataFrame, group: pd.DataFrame) -> BlockRatio | None:
    """Return the seconds of an epoch of `base` over those of `group`, rows of `frames.launch_frame` of one layout each.

    Of the blocks in which valid launches of `group` trained in turns with the base's layout; None for fewer than 3. A
    block's number is that of its `undisturbed` turns.
    """
    first, second = launch_layout(base["run"].iloc[0]), launch_layout(group["run"].iloc[0])
    work = math.log(float(base["steps"].iloc[0]) / float(group["steps"].iloc[0]))
    ratios = [block.undisturbed(first, second) for block in group["rounds"] if isinstance(block, BlockRounds)]
    return ratio_over_blocks([ratio + work for ratio in ratios if ratio is not None])
