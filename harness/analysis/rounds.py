"""What trained in turns, compared within blocks: the sample is the block, one log ratio of its rounds.

Rounds of one block alone decide nothing: every start of a launch has a speed of its own (0.7 to 1 % on a virtual
machine), which its rounds share. Over blocks Student's t of their numbers holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
_SHARED = 1.25  # times a step that ranks which share a physical core take at least
_TOGETHER = 1.3  # times what one thread of a core does, two do at most (Marr et al. 2002: up to 30 % more)
FEWEST_ROUNDS = 5  # of a block that are left
_TAIL = 0.1  # of a block's rounds, on either side, which count as the next one within


@dataclass(frozen=True, slots=True, eq=False)
class BlockRounds:
    """A block's seconds per step, float64, one row a round and one column a launch; NaN where it had no turn.

    `turns` has the same as one row a turn, with core_ns and bound (see `harness.sweep.block.BlockEnd`), where they are
    known.
    """

    steps: pd.DataFrame
    turns: pd.DataFrame | None = None

    def both(self, first: str, second: str) -> pd.DataFrame:
        """Return the rounds in which both had a turn."""
        return self.steps.reindex(columns=[first, second]).dropna()

    def log_ratios(self, first: str, second: str) -> NDArray[np.float64]:
        """Return the logarithms of `first`'s step times over `second`'s, of the rounds in which both had a turn."""
        both = self.both(first, second)
        ratios: NDArray[np.float64] = np.log(both[first].to_numpy() / both[second].to_numpy())
        return ratios

    def on_same_cores(self, first: str, second: str) -> pd.DataFrame:
        """Return the logarithm of `first`'s step time over `second`'s (ratio) and the latter's core_ns, a row a round.

        `first`, a single rank, trains on the cores of each rank of `second` in turn, and counts by that on which it is
        slowest, in the rounds next to this one: the ranks of `second` wait for that core too. What cannot be seen from
        inside, such as another virtual machine on the same physical core, slows one core or the other for seconds.
        """
        if self.turns is None:
            return pd.DataFrame({"ratio": self.log_ratios(first, second), "core_ns": 0.0})
        one, other = (self.turns[self.turns["launch"] == name].set_index("round") for name in (first, second))
        if one.empty or other.empty:
            return pd.DataFrame({"ratio": [], "core_ns": []}, dtype=float)
        where = one.pivot(columns="bound", values="step").reindex(
            range(min(self.steps.index), max(self.steps.index) + 1)
        )
        its = [cores for cores in where if cores in other["bound"].iloc[0].split(";")]
        near = where[its or list(where)].rolling(2 * (where.shape[1] // 2) + 1, center=True, min_periods=1).mean()
        ratio = np.log(near.max(axis=1, skipna=False).reindex(other.index) / other["step"])
        return pd.DataFrame({"ratio": ratio, "core_ns": other["core_ns"]}).dropna(subset="ratio")


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
    timed = long.assign(step=long["seconds"] / long["steps"])
    steps = timed.pivot(index="round", columns="launch", values="step")
    return BlockRounds(steps, timed if "bound" in timed else None)


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
    """A ratio over blocks: the mean of their log ratios, as a factor, and its 95 % interval.

    `left_out` is the part of the rounds in which ranks shared a physical core.
    """

    ratio: float
    interval: Interval
    blocks: int
    left_out: float = 0.0


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
    block's number is Winsor's mean of its rounds (`BlockRounds.on_same_cores`), without those in which two ranks had
    one physical core.
    """
    first, second = launch_layout(base["run"].iloc[0]), launch_layout(group["run"].iloc[0])
    work = math.log(float(base["steps"].iloc[0]) / float(group["steps"].iloc[0]))
    rows = [float(one["global_batch"].iloc[0] / one["ranks"].iloc[0]) for one in (base, group)]  # of a rank's step
    blocks = [block.on_same_cores(first, second) for block in group["rounds"] if isinstance(block, BlockRounds)]
    if not blocks:
        return None
    rounds = pd.concat(blocks)
    shared = shared_core_ns(rounds, math.log(rows[0] / rows[1]))
    ratios = []
    for block in blocks:
        kept = block[~(block["core_ns"] <= shared)]["ratio"].to_numpy()
        if len(kept) >= min(FEWEST_ROUNDS, len(block)) > 0:
            ratios.append(float(winsorise(kept).mean()) + work)
    found = ratio_over_blocks(ratios)
    return replace(found, left_out=float((rounds["core_ns"] <= shared).mean())) if found else None


def shared_core_ns(rounds: pd.DataFrame, ideal: float) -> float:
    """Return up to which `core_ns` two ranks shared one physical core in `rounds`, of `on_same_cores`; below 0: never.

    A virtual machine's cores may be two threads of one for seconds. Then they are nearer to each other than at any
    other time, and both together do little more than one: less than `_TOGETHER` times as much, where `ideal` is the
    logarithm of the ratio of two undisturbed ones. Cores that only share a cache are near too, and slower for some
    networks: they are what the machine has, and count. Of such borders it is the one that explains most of the ratios'
    variance.
    """
    known = rounds[rounds["core_ns"] > 0].sort_values("core_ns", kind="stable")
    if len(known) < 2 * FEWEST_ROUNDS:
        return -1.0
    ratios, below = known["ratio"].to_numpy() - ideal, np.arange(1, len(known))
    sums = ratios.cumsum()
    near = sums[:-1] / below
    gains = (sums[-1] - sums[:-1]) / (len(known) - below) - near
    explained = np.where(near < math.log(_TOGETHER / 2), below * (len(known) - below) * gains**2, 0.0)
    border = int(np.argmax(explained))
    found = explained[border] > 0 and gains[border] > math.log(_SHARED)
    return float(known["core_ns"].iloc[border]) if found else -1.0
