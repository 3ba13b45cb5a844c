"""Medians and their intervals; and what trained in turns, compared within blocks.

The sample is the launch, not the step (Hoefler & Belli, "Scientific Benchmarking of Parallel Computing
Systems", SC'15, rules 5 to 7). No mean of ratios is ever taken: ratios are of medians.

In turns the sample is the block, one log ratio of its rounds. Rounds of one block alone decide nothing: every start of
a launch has a speed of its own (0.7 to 1 % on a virtual machine), which its rounds share. Over blocks Student's t of
their numbers holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, quantile_test
from scipy.stats import t as student

LEVEL = 0.95
NEEDED = 6  # launches: below this no pair of order statistics reaches 95 %
SESSION_GAP = timedelta(hours=1)
SESSION_SPREAD = 0.02  # deviation between sessions that stands in where too few were measured
_RESAMPLES = 9999
FEWEST_BLOCKS = 3
_UNDISTURBED = 0.95
_BUSY = 0.9  # cores
_FEWEST_STEPS = 5  # of a turn; a turn that met the end of an epoch may be shorter
_SHARED = 1.25  # times a step that ranks which share a physical core take at least
_TOGETHER = 1.3  # times what one thread of a core does, two do at most (Marr et al. 2002: up to 30 % more)
FEWEST_ROUNDS = 5  # of a block that are left
_TAIL = 0.1  # of a block's rounds, on either side, which count as the next one within


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A two-sided 95 % interval, in the unit of the values."""

    low: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of `factor` (above 0) times the value."""
        return Interval(low=self.low * factor, high=self.high * factor)


def sessions(times: Sequence[tuple[datetime, datetime]]) -> tuple[int, ...]:
    """Return the number of the session, from 0 in order of time, of launches that started and ended at `times`.

    A session ends where nothing runs for `SESSION_GAP`: what comes later may find the machine in another state
    (other neighbours on the host, another clock rate), which all its launches share. The levels are those of
    Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time" (ISMM 2013): launches within sessions.
    """
    found = [0] * len(times)
    number, until = -1, None
    for place in sorted(range(len(times)), key=lambda place: times[place]):
        begin, end = times[place]
        if until is None or begin - until > SESSION_GAP:
            number += 1
        until = end if until is None else max(until, end)
        found[place] = number
    return tuple(found)


def median_interval(values: ArrayLike) -> Interval | None:
    """Return the order-statistic 95 % interval of the median of `values`, None below 6 values.

    Without assumption on the distribution: the number of values below the median is Binomial(n, 1/2), and the narrowest
    symmetric pair is taken. Of this session only: exact for independent values. Where two speeds of a machine last over
    launches (kept with a chance of 0.8 to 0.95), it covered 41 to 88 % of the true medians.
    """
    data = np.asarray(values, dtype=float)
    if len(data) < NEEDED:
        return None
    low, high = quantile_test(data, p=0.5).confidence_interval(LEVEL)
    return Interval(low=float(low), high=float(high))


def ratio_interval(
    numerator: ArrayLike, denominator: ArrayLike, *, paired: bool = False, seed: int = 0
) -> Interval | None:
    """Return the 95 % interval of median(numerator) / median(denominator), by `percentiles` of a bootstrap.

    `paired`: value k of both is of the same block of the interleaved order, and whole blocks are drawn: what slows a
    whole block cancels in the ratio. None when either has fewer than 6 values.
    """
    top, bottom = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if min(len(top), len(bottom)) < NEEDED:
        return None
    first, second = resamples(len(top), len(bottom), paired=paired, seed=seed)
    return percentiles(_medians(top[first]) / _medians(bottom[second]), min(len(top), len(bottom)))


def resamples(first: int, second: int, *, paired: bool, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the launches that a bootstrap draws of `first` and of `second` launches, [draws, launches].

    Seeded, so that a report is the same when drawn again. `paired`: the same numbers of both, which are equally many.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, first, (_RESAMPLES, first))
    return drawn, drawn if paired else rng.integers(0, second, (_RESAMPLES, second))


def percentiles(values: NDArray[np.float64], launches: int, *, rows: int = 1) -> Interval:
    """Return the 95 % interval that the `values` [draws] of a bootstrap over `launches` make.

    `rows` that are read together share the error (Bonferroni), so that all of them hold with 95 %.

    Percentiles are widened for few launches (Hesterberg, "What Teachers Should Know About the Bootstrap", The
    American Statistician 69, 2015, section 5.2: a bootstrap sample varies too little by the factor (n-1)/n).
    """
    quantile = norm.isf((1 - LEVEL) / 2 / rows) * math.sqrt(launches / (launches - 1))
    tail = 100 * norm.cdf(-quantile)
    low, high = np.percentile(values, [tail, 100 - tail])
    return Interval(low=float(low), high=float(high))


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``np.median(values, axis=1)``; of thousands of short rows a sort finds them ten times as fast."""
    rows = np.sort(values, axis=1)
    count = rows.shape[1]
    medians: NDArray[np.float64] = (rows[:, (count - 1) // 2] + rows[:, count // 2]) / 2
    return medians


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
