"""What trained in turns: the time of a step of every launch of a block, with interference and without contended rounds.

The estimand, everywhere: the speedup of P ranks is the time of one rank, averaged over the cores on which it may run,
divided by the time of P ranks, for the same rows. No maximum, minimum or best of measured times is ever taken for a
time, and nothing is left out by a rule that looks at the times themselves.

Comparing within small slices of time is duet benchmarking: Bulej et al., "Duet Benchmarking: Improving Measurement
Accuracy in the Cloud" (ICPE 2020, arXiv 2001.05811).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST_ROUNDS = 5
"""A block with fewer undisturbed rounds than these has no time excluding contended rounds."""
_UNDISTURBED_SHARE = 0.95  # of the processor time that a core of such a launch usually has
_USUAL = 0.75  # the quantile of the shares that is usual
_BUSY_SHARE = 0.9  # a launch that keeps its cores less busy shows nothing of what others took
_WHOLE_TURN_STEPS = 5  # a turn that met the end of an epoch may be shorter, and its time is rough
_SPEEDUP_TAIL = 0.025  # noise of many ranks is more one-sided than that of one: a wide tail would favour them


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockTimes:
    """Times of a block's launches, by the names of their folders (`Point.folder`), in seconds per step.

    `as_it_ran` is the mean over all turns. `undisturbed` is of the rounds that no other work met, empty where fewer
    than `LEAST_ROUNDS` are left. `base` is the launch with the fewest ranks. `left_out` is the part of the rounds that
    other work met, and `calm_rounds` the numbers of the other rounds. The block `is_short` where a launch has whole
    turns in fewer than `LEAST_ROUNDS` of all rounds. `slowest_core` is the logarithm of the base's time on its slowest
    core over that averaged over its cores, None where it trained on one core only.
    """

    base: str
    as_it_ran: Mapping[str, float]
    undisturbed: Mapping[str, float]
    left_out: float
    calm_rounds: frozenset[int] = frozenset()
    is_short: bool
    slowest_core: float | None

    def step_seconds(self, launch: str) -> float:
        """Return the seconds of a step excluding contended rounds; including interference in a block that has none."""
        times = self.undisturbed or self.as_it_ran
        return times[launch]

    def has(self, launch: str) -> bool:
        """Return whether the block has times of `launch`."""
        return launch in (self.undisturbed or self.as_it_ran)


def read_turn_block(turns: pd.DataFrame) -> BlockTimes:
    """Return the times of a block of like launches from its `turns`.

    `turns` has the columns of `harness.sweep.turn_block.BlockEnd`, a row at least, and names launches by their folders.
    """
    rank_counts = turns.groupby("launch")["bound"].first().str.count(";") + 1
    base = str(rank_counts.sort_values(kind="stable").index[0])
    calm = undisturbed_rounds(turns)
    calm_rounds = frozenset(map(int, calm["round"]))
    return BlockTimes(
        base=base,
        as_it_ran=mean_step_times(turns),
        undisturbed=undisturbed_step_times(calm, base) if len(calm_rounds) >= LEAST_ROUNDS else {},
        left_out=1 - len(calm_rounds) / turns["round"].nunique(),
        calm_rounds=calm_rounds,
        is_short=bool(_whole_turns(turns).groupby("launch")["round"].nunique().min() < LEAST_ROUNDS),
        slowest_core=slowest_core_excess(calm[calm["launch"] == base]),
    )


def undisturbed_rounds(turns: pd.DataFrame, *, alike: bool = True) -> pd.DataFrame:
    """Return the turns of the rounds that no other work met; a round that it met is left out as a whole.

    It met a round where a rank had, in any turn, less than 95 % of the processor time that a core of such launches
    usually has. Processor time is `cores`, by the kernel's accounting, which does not count stolen time. The rule looks
    at no step's time, and is the same for all launches: it takes nothing from one side of a comparison only. Usual is
    the upper quartile of a launch's turns, and where launches are `alike` the highest of these: a core that others use
    all the time is not usual. Ranks that sleep while they wait keep no core busy and show nothing of others: where that
    is usual, every round counts.
    """
    share = turns["cores"] / _cores_of_a_rank(turns)
    usual = share.groupby(turns["launch"]).transform("quantile", _USUAL)
    if alike and len(usual):
        usual = usual.clip(lower=usual.max())
    met = (share < _UNDISTURBED_SHARE * usual) & (usual >= _BUSY_SHARE)
    return turns[~turns["round"].isin(turns.loc[met, "round"])]


def _cores_of_a_rank(turns: pd.DataFrame) -> pd.Series:
    """Return how many cores a rank of each turn might use."""
    if "bound" not in turns:
        return pd.Series(1.0, index=turns.index)
    return turns["bound"].str.split(";").str[0].str.count(",") + 1.0


def mean_step_times(turns: pd.DataFrame) -> dict[str, float]:
    """Return the seconds of a step of every launch: total seconds over total steps, over all of its `turns`.

    Of a single rank, which trains on several cores in turn, it is the mean over the cores. An arithmetic mean is what
    a user waits for.
    """
    times = {}
    for launch, launch_turns in turns.groupby("launch", sort=False):
        totals = launch_turns.groupby("bound")[["seconds", "steps"]].sum()
        times[str(launch)] = float((totals["seconds"] / totals["steps"]).mean())
    return times


def block_steps(turns: pd.DataFrame) -> pd.DataFrame:
    """Return seconds per step, one row a round and one column a launch, NaN where it had no whole turn.

    A turn that was cut short has no time; where steps are long, the turns of a launch have three.
    """
    whole = _whole_turns(turns)
    timed = whole.assign(step=whole["seconds"] / whole["steps"])
    return timed.pivot(index="round", columns="launch", values="step")


def _whole_turns(turns: pd.DataFrame) -> pd.DataFrame:
    fewest = turns.groupby("launch")["steps"].transform("median").clip(upper=_WHOLE_TURN_STEPS)
    return turns[turns["steps"] >= fewest]


def undisturbed_step_times(calm: pd.DataFrame, base: str) -> dict[str, float]:
    """Return the seconds of a step of every launch in the undisturbed rounds `calm`.

    Within each round a launch is compared with `base`, whose logarithmic time in that round is the mean over its cores
    (`base_log_times`). Winsor's mean of these log ratios places the launch relative to the base, whose own time is the
    mean of its logarithms. Empty where a launch has no whole turn in `LEAST_ROUNDS` of the rounds.
    """
    whole = _whole_turns(calm)
    turns_of_launch = dict(iter(whole.groupby("launch", sort=False)))
    base_turns = turns_of_launch.get(base, whole.iloc[:0])
    if base_turns["round"].nunique() < LEAST_ROUNDS:
        return {}
    base_log = float(base_log_times(base_turns, np.unique(calm["round"])).mean())
    times = {base: math.exp(base_log)}
    for launch in calm["launch"].unique():
        by_round = turns_of_launch.get(launch, whole.iloc[:0]).sort_values("round")
        base_logs = base_log_times(base_turns, by_round["round"].to_numpy())
        logs: Array = np.log((by_round["seconds"] / by_round["steps"]).to_numpy())
        ratios = base_logs - logs
        if len(ratios) < LEAST_ROUNDS:
            return {}
        if launch != base:
            times[str(launch)] = math.exp(base_log - winsorise(ratios, _SPEEDUP_TAIL).mean())
    return times


def base_log_times(base_turns: pd.DataFrame, rounds: NDArray[np.int64]) -> Array:
    """Return the logarithm of a step's seconds of the base in each of the `rounds`, the mean over its cores [rounds].

    A single rank trains on one core a round and on all of them in turn. Between two of its turns on a core the
    logarithm there is interpolated: what the machine does to a core for seconds is in both.
    """
    log_times = []
    for _, core_turns in base_turns.sort_values("round").groupby("bound"):
        step_logs = np.log(core_turns["seconds"] / core_turns["steps"])
        log_times.append(np.interp(rounds, core_turns["round"], step_logs))
    mean: Array = np.mean(log_times, axis=0)
    return mean


def winsorise(values: Array, tail: float = 0.1) -> Array:
    """Return `values` for Winsor's mean: a part `tail` of them on either side counts as the next one within.

    A state of the machine may last for seconds, such as a core that a neighbouring virtual machine uses in part. A mean
    then contains both states in proportion. A median would be that of either state, by chance.
    """
    clipped: Array = np.clip(values, *np.quantile(values, (tail, 1 - tail)))
    return clipped


def slowest_core_excess(base_turns: pd.DataFrame) -> float | None:
    """Return the logarithm of the base's time on its slowest core over that averaged over its cores; None of one core.

    The slowest core is chosen in one half of the turns and measured in the other, and the other way round: the slowest
    of measured times is slow by chance too (the winner's curse).
    """
    whole = _whole_turns(base_turns).sort_values("round")
    turn_on_core = whole.groupby("bound").cumcount()
    logs = pd.Series(np.log((whole["seconds"] / whole["steps"]).to_numpy()), index=whole.index)
    halves = [logs[turn_on_core % 2 == half].groupby(whole["bound"]).mean() for half in (0, 1)]
    if len(halves[0]) < 2 or len(halves[0]) != len(halves[1]):
        return None
    excesses = []
    for chosen, measured in (halves, halves[::-1]):
        excesses.append(measured.loc[str(chosen.idxmax())] - measured.mean())
    return float(np.mean(excesses))
