"""The scaling table: what each point took, and how much faster than the base that is, at equal samples and to equal
accuracy; and sweeps side by side in both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.frames import between, final_frame
from harness.analysis.stats import (
    FEWEST_BLOCKS,
    NEEDED,
    BlockMean,
    Interval,
    median_interval,
    over_blocks,
    ratio_interval,
    ratio_over_blocks,
    sessions,
)
from harness.analysis.turn_blocks import TurnBlock
from harness.base.errors import UserError

_OTHER_SESSION = "another session than the base's: no interval"  # what lies between sessions is in no launch's scatter
SAME_WORK = 0.01  # relative difference of rows (strong) or rows per rank (weak) that is still the same work
SLACK = 0.01  # the default target lies this far below the base's final accuracy: one percentage point


@dataclass(frozen=True, kw_only=True, slots=True)
class PointScaling:
    """One layout's row of the scaling table. Times in seconds per epoch; intervals are None below 6 launches.

    Launches in turns have two times, on undisturbed cores (`seconds`) and as they ran (`ran_seconds`), and a speedup of
    each; the ratio of the base's time to the point's is the speedup (strong scaling). The `ran_` fields are None for
    launches one after the other, whose times are as they ran.

    `speedup` is relative to the base (scaled speedup under weak scaling) and None where the work differs
    from the base's, `ideal` the ratio of the ranks, `efficiency` speedup over the ratio of the cores, which is the
    same where all ranks have as many threads. `step_seconds` is a launch's
    epoch time over its steps. `between` is the relative standard deviation of the launches (None for one),
    `within` the median over launches of that of their epochs (None for one epoch); `outliers` counts launches
    that stand out. `other_session`: launched in other sessions than the base, so that its speedup has no interval.
    `blocks`: in how many it trained in turns with the base, so that speedup and interval are of these (Student's t from
    3 blocks on), else 0.
    `flags` are short sentences: superlinear, indivisible, not comparable, in another session.
    """

    layout: str
    nodes: int
    ranks: int
    threads: int
    launches: int
    excluded: int
    epochs: int
    rows: int
    global_batch: int
    seconds: float
    seconds_interval: Interval | None
    step_seconds: float
    step_interval: Interval | None
    between: float | None
    within: float | None
    outliers: int
    rows_per_second: float
    ideal: float
    speedup: float | None
    speedup_interval: Interval | None
    efficiency: float | None
    efficiency_interval: Interval | None
    other_session: bool
    blocks: int
    flags: tuple[str, ...]
    ran_seconds: float | None = None
    ran_speedup: float | None = None
    ran_speedup_interval: Interval | None = None
    ran_efficiency: float | None = None

    @property
    def rows_interval(self) -> Interval | None:
        """The interval of `rows_per_second`: the rows over the ends of the time's interval."""
        times = self.seconds_interval
        return None if times is None else Interval(low=self.rows / times.high, high=self.rows / times.low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """All points with a valid launch, in order of ranks, and the one they are compared with.

    Of launches in turns: `unequal_cores` is the part of the time of one rank that its slowest core takes longer than
    its cores on average, over blocks; None where it trained on one core or in fewer than 3 blocks. `left_out` is the
    part of the rounds that other work met, `disturbed_blocks` counts the blocks that had too few other rounds, whose
    times are as they ran.
    """

    scaling: str
    base: PointScaling
    points: tuple[PointScaling, ...]
    unequal_cores: BlockMean | None = None
    left_out: float = 0.0
    disturbed_blocks: int = 0

    @property
    def repeats(self) -> tuple[int, int]:
        """The fewest and the most valid launches of a point."""
        counts = [point.launches for point in self.points]
        return min(counts), max(counts)

    @property
    def others(self) -> tuple[PointScaling, ...]:
        """The points that are not the base."""
        return tuple(point for point in self.points if point is not self.base)


def scale(launches: pd.DataFrame, *, base_ranks: int | None = None) -> Scaling | None:
    """Return the scaling of the valid rows of `launches` (see `frames.launch_frame`), None if there are none.

    The base is the smallest rank count that has valid launches, or `base_ranks`.

    Raises:
        UserError: `base_ranks` has no valid launch.
    """
    valid = launches[launches["valid"]]
    if valid.empty:
        return None
    order = valid.sort_values(["ranks", "nodes", "threads"], kind="stable")
    groups = [group for _, group in order.groupby("layout", sort=False)]
    base = groups[0]
    if base_ranks is not None:
        bases = [group for group in groups if group["ranks"].iloc[0] == base_ranks]
        if not bases:
            have = ", ".join(str(ranks) for ranks in sorted(set(valid["ranks"])))
            raise UserError(f"base {base_ranks} has no valid launch: choose one of {have}")
        base = bases[0]
    excluded = launches[~launches["valid"]]["layout"].value_counts()
    in_turns = bool(valid["ran_seconds"].notna().all())
    points = tuple(_point(group, base, excluded, in_turns=in_turns) for group in groups)
    own = next(point for point in points if point.layout == base["layout"].iloc[0])
    scaling = Scaling(scaling=str(base["scaling"].iloc[0]), base=own, points=points)
    return _with_blocks(scaling, valid, base) if in_turns else scaling


def _with_blocks(scaling: Scaling, valid: pd.DataFrame, base: pd.DataFrame) -> Scaling:
    """Return `scaling` with what the blocks of its launches say of cores and of other work."""
    blocks = list({id(block): block for block in valid["turn_block"]}.values())
    base_launches = set(base["run"])
    excesses = [
        math.expm1(block.slowest_core)
        for block in blocks
        if block.slowest_core is not None and block.base in base_launches
    ]
    return replace(
        scaling,
        unequal_cores=over_blocks(excesses),
        left_out=float(np.mean([block.left_out for block in blocks])),
        disturbed_blocks=sum(not block.undisturbed for block in blocks),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _PointTimes:
    """The base's epoch time over a point's (`ratio`, None where the work differs), the point's time, and intervals.

    `blocks` as in `PointScaling`.
    """

    seconds: float
    seconds_interval: Interval | None
    ratio: float | None
    interval: Interval | None
    blocks: int = 0


def _times_of_launches(group: pd.DataFrame, base: pd.DataFrame, *, compared: bool, same: bool) -> _PointTimes:
    """Return the times of launches one after the other: medians, and their ratio."""
    seconds = float(group["seconds"].median())
    return _PointTimes(
        seconds=seconds,
        seconds_interval=median_interval(group["seconds"]),
        ratio=float(base["seconds"].median()) / seconds if compared else None,
        interval=paired_ratio(base, group) if compared and not same else None,
    )


def _times_in_turns(
    group: pd.DataFrame, base: pd.DataFrame, *, compared: bool, same: bool, as_it_ran: bool
) -> _PointTimes:
    """Return the times of launches in turns: geometric means over launches, and the ratio over their blocks.

    The point's time is the base's over the ratio, so that both are of the same moments also where blocks are missing.
    """
    column = "ran_seconds" if as_it_ran else "seconds"
    if not as_it_ran:
        group, base = undisturbed_launches(group), undisturbed_launches(base)
    log_seconds = np.log(group[column].to_numpy(dtype=float))
    seconds, ratio = geometric_mean(group[column].tolist()), 1.0 if same else None
    interval, block_count = None, 0
    if compared and not same:
        base_seconds = geometric_mean(base[column].tolist())
        log_ratios = block_log_ratios(base, group, as_it_ran=as_it_ran)
        mean = ratio_over_blocks(log_ratios)
        ratio, block_count = base_seconds / seconds, len(log_ratios)
        if log_ratios:
            ratio = math.exp(float(np.mean(log_ratios)))
            seconds = base_seconds / ratio
        interval = mean.interval if mean else None
    spread = over_blocks(log_seconds.tolist())
    return _PointTimes(
        seconds=seconds,
        seconds_interval=_around(seconds, spread.reach) if spread else None,
        ratio=ratio,
        interval=interval,
        blocks=block_count,
    )


def undisturbed_launches(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `launches` (`frames.launch_frame`) whose times are on undisturbed cores, all where none is."""
    undisturbed = launches[~launches["disturbed"].astype(bool)]
    return launches if undisturbed.empty else undisturbed


def _around(value: float, log_reach: float) -> Interval:
    return Interval(low=value * math.exp(-log_reach), high=value * math.exp(log_reach))


def block_log_ratios(base: pd.DataFrame, group: pd.DataFrame, *, as_it_ran: bool = False) -> list[float]:
    """Return the logarithm of the base's epoch time over the group's in every block in which both trained in turns.

    `base` and `group` are rows of `frames.launch_frame` of one layout each. A block in which the base's launch was not
    valid does not count.
    """
    log_steps = math.log(float(base["steps"].iloc[0]) / float(group["steps"].iloc[0]))
    base_blocks = {launch: id(block) for launch, block in zip(base["run"], base["turn_block"], strict=True)}
    log_ratios = []
    for launch, block in zip(group["run"], group["turn_block"], strict=True):
        base_launch = _base_launch(block, base_blocks)
        if base_launch:
            base_step = block.as_it_ran[base_launch] if as_it_ran else block.step_seconds(base_launch)
            step = block.as_it_ran[launch] if as_it_ran else block.step_seconds(launch)
            log_ratios.append(math.log(base_step / step) + log_steps)
    return log_ratios


def _base_launch(block: TurnBlock, base_blocks: Mapping[str, int]) -> str:
    """Return the valid launch of the base in `block`, an empty text where there is none.

    `base_blocks` has by launch the identity of its own block. A block's base may have its record of another block, and
    so may a launch that was made again, whose turns here do not count.
    """
    for launch, own_block in base_blocks.items():
        if block.has(launch) and (launch == block.base or own_block == id(block)):
            return launch
    return ""


def _point(group: pd.DataFrame, base: pd.DataFrame, excluded: pd.Series, *, in_turns: bool) -> PointScaling:
    first = {str(name): value for name, value in group.iloc[0].items()}
    ideal = first["ranks"] / int(base["ranks"].iloc[0])
    different = _different_work(group, base)
    same = group["layout"].iloc[0] == base["layout"].iloc[0]
    ran = None
    if in_turns:
        times = _times_in_turns(group, base, compared=not different, same=same, as_it_ran=False)
        ran = _times_in_turns(group, base, compared=not different, same=same, as_it_ran=True)
    else:
        times = _times_of_launches(group, base, compared=not different, same=same)
    ratio, interval = times.ratio, times.interval
    # Strong: the same rows in less time. Weak: more rows in the same time.
    to_speedup = 1.0 if first["scaling"] == "strong" else ideal
    to_efficiency = to_speedup / (int(first["cores"]) / int(base["cores"].iloc[0]))
    efficiency = None if ratio is None else ratio * to_efficiency
    bounds = interval.scaled(to_efficiency) if interval else None
    enough = not (different or same or in_turns) and min(len(base), len(group)) >= NEEDED
    elsewhere = enough and comparable(base, group) is None
    flags = [
        different,
        _OTHER_SESSION if elsewhere else "",
        _superlinear(efficiency, bounds),
        *_indivisible(first),
    ]
    within = float(group["within"].median())
    steps = float(first["steps"])
    facts = ("layout", "nodes", "ranks", "threads", "epochs", "rows", "global_batch")
    return PointScaling(
        **{name: first[name] for name in facts},
        launches=len(group),
        excluded=int(excluded.get(first["layout"], 0)),
        seconds=times.seconds,
        seconds_interval=times.seconds_interval,
        step_seconds=times.seconds / steps,
        step_interval=times.seconds_interval.scaled(1 / steps) if times.seconds_interval else None,
        between=between(undisturbed_launches(group)["seconds"]),
        within=None if math.isnan(within) else within,
        outliers=int(group["outlier"].sum()),
        rows_per_second=first["rows"] / times.seconds,
        ideal=ideal,
        speedup=None if ratio is None else ratio * to_speedup,
        speedup_interval=interval.scaled(to_speedup) if interval else None,
        efficiency=efficiency,
        efficiency_interval=bounds,
        other_session=elsewhere,
        blocks=times.blocks,
        flags=tuple(flag for flag in flags if flag),
        ran_seconds=ran.seconds if ran else None,
        ran_speedup=ran.ratio * to_speedup if ran and ran.ratio is not None else None,
        ran_speedup_interval=ran.interval.scaled(to_speedup) if ran and ran.interval else None,
        ran_efficiency=ran.ratio * to_efficiency if ran and ran.ratio is not None else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparableLaunches:
    """The launches of two layouts that their ratio is formed of. `paired`: row k of both is of one block."""

    base: pd.DataFrame
    group: pd.DataFrame
    paired: bool


def comparable(base: pd.DataFrame, group: pd.DataFrame) -> ComparableLaunches | None:
    """Return which valid rows of `base` and `group`, of one layout each, compare; None where none do.

    A block of the launch order has one repeat of every layout. Whole blocks, each launched in one session
    (`stats.sessions`), are pairs. Where one of the two lacks a repeat, or has it twice, the launches of a single
    session count as unrelated, which can only widen an interval; of several sessions only the pairs are left, since
    no launch's scatter shows how far sessions differ. None for fewer than 6 of those.
    """
    begins, ends = (pd.concat([base[name], group[name]]) for name in ("session_begin", "session_end"))
    numbers = np.array(sessions(list(zip(begins, ends, strict=True))))
    one, other = (
        frame.assign(session=own).sort_values("repeat", kind="stable")
        for frame, own in ((base, numbers[: len(base)]), (group, numbers[len(base) :]))
    )
    once = [frame.drop_duplicates("repeat", keep=False).set_index("repeat")["session"] for frame in (one, other)]
    both = once[0].to_frame("base").join(once[1].rename("group"), how="inner")
    blocks = both.index[both["base"] == both["group"]]
    whole = len(blocks) == len(one) == len(other)
    if whole or len(set(numbers)) == 1:
        return ComparableLaunches(base=one, group=other, paired=whole)
    if len(blocks) < NEEDED:
        return None
    one, other = (frame[frame["repeat"].isin(blocks)] for frame in (one, other))
    return ComparableLaunches(base=one, group=other, paired=True)


def paired_ratio(base: pd.DataFrame, group: pd.DataFrame) -> Interval | None:
    """Return the 95 % interval of the median time of `base` over that of `group`, of their `comparable` launches."""
    found = comparable(base, group)
    return ratio_interval(found.base["seconds"], found.group["seconds"], paired=found.paired) if found else None


def _different_work(group: pd.DataFrame, base: pd.DataFrame) -> str:
    """Return why the times of `group` and `base` are not of the same work, an empty text where they are."""
    strong = group["scaling"].iloc[0] == "strong"
    what = "rows per epoch" if strong else "rows per rank"
    own, its = (float(frame["rows"].iloc[0] / (1 if strong else frame["ranks"].iloc[0])) for frame in (group, base))
    if math.isclose(own, its, rel_tol=SAME_WORK):
        return ""
    return f"{own:,.0f} {what} against the base's {its:,.0f}: not the same work, no speedup"


def _superlinear(efficiency: float | None, interval: Interval | None) -> str:
    if efficiency is None or efficiency <= 1 + 1e-12:
        return ""
    if interval is None:
        return "superlinear: efficiency above 100 %, with too few launches to distinguish it from noise"
    if interval.low <= 1:
        return "superlinear within noise: the interval of the efficiency includes 100 %"
    return (
        "superlinear: efficiency above 100 % beyond noise. A rank's part of the rows may fit a cache that the "
        "base's does not, or the base is slow for another reason"
    )


def _indivisible(first: dict[str, Any]) -> list[str]:
    rows, ranks, batch = first["all_rows"], first["ranks"], first["global_batch"]
    flags = []
    if rows % ranks and first["equal_shares"]:
        flags.append(f"{rows:,} rows do not divide by {ranks} ranks")
    if rows % batch and rows != first["rows"]:
        flags.append(f"the last {rows % batch:,} rows of an epoch fill no batch of {batch:,} and are left out")
    return flags


def needed_launches(scaling: Scaling) -> int:
    """Return how many launches the point with fewest launches still needs for an interval, 0 where none does."""
    least = FEWEST_BLOCKS if all(point.blocks for point in scaling.others) and scaling.others else NEEDED
    return max(0, least - scaling.repeats[0])


def ratios_frame(scaling: Scaling, launches: pd.DataFrame) -> pd.DataFrame:
    """Return the valid rows of `launches` with speedup and efficiency of each.

    In turns it is that of the launch's block, if that is undisturbed, else the base's median over the launch's time.
    Points whose work differs from the base's get NaN.
    """
    points = {point.layout: point for point in scaling.points}
    valid = launches[launches["valid"]]
    valid = valid.sort_values(["ranks", "nodes", "threads", "repeat"], kind="stable")
    ideal = valid["layout"].map(lambda layout: points[layout].ideal)
    base = valid[valid["layout"] == scaling.base.layout]
    valid = undisturbed_launches(valid)
    known = valid["layout"].map(lambda layout: points[layout].speedup is not None)
    speedup = scaling.base.seconds / valid["seconds"]
    for layout, group in valid.groupby("layout", sort=False):
        if points[str(layout)].blocks:
            ratios = [block_log_ratios(base, group.iloc[[place]]) for place in range(len(group))]
            speedup[group.index] = [math.exp(of_launch[0]) if of_launch else math.nan for of_launch in ratios]
    speedup = speedup.where(known)
    if scaling.scaling != "strong":
        speedup *= ideal
    return valid.assign(speedup=speedup, efficiency=speedup / (valid["cores"] / base["cores"].iloc[0]))


def parts_of_points(scaling: Scaling, parts: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return `parts` (`frames.breakdown_frame`), those `columns` scaled to sum to the time of their point."""
    seconds = parts["layout"].map({point.layout: point.seconds for point in scaling.points})
    return parts.assign(**parts[list(columns)].mul(seconds / parts[list(columns)].sum(axis=1), axis=0))


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToAccuracy:
    """One layout. `seconds` is the median training time after which a launch first has the target accuracy.

    Epochs are not interpolated. A launch that never reaches it counts as infinitely long: `seconds` is None where
    half of the launches or more do not. `speedup` is over the base's median, None where either is; its interval
    needs 6 launches of both, all of which reach the target.
    """

    layout: str
    ranks: int
    launches: int
    reached: int
    seconds: float | None
    speedup: float | None
    interval: Interval | None


def default_accuracy(launches: pd.DataFrame, base_layout: str) -> float | None:
    """Return the base's median final test accuracy less `SLACK`, None where that is nothing or it was not tested."""
    final = final_frame(launches)
    accuracy = float(final.loc[final["layout"] == base_layout, "test_accuracy"].iloc[0])
    return accuracy - SLACK if accuracy > SLACK else None


def times_to_accuracy(epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return one row per valid launch of `epochs` (`frames.epoch_frame`): its place, its session, seconds.

    `seconds` of training until the first epoch whose test accuracy is at least `target`, infinite if none is.
    """
    valid = epochs[epochs["valid"]]
    there = valid["trained_s"].where(valid["test_accuracy"] >= target, math.inf)
    keys = ["layout", "ranks", "repeat", "run", "session_begin", "session_end"]
    return valid.assign(seconds=there).groupby(keys, sort=False)["seconds"].min().reset_index()


def speedups_to_accuracy(times: pd.DataFrame, base: pd.DataFrame) -> tuple[TimeToAccuracy, ...]:
    """Return every layout of `times` over the launches `base` (rows of `times_to_accuracy`, one layout), by ranks."""
    groups = times.sort_values("ranks", kind="stable").groupby("layout", sort=False)
    return tuple(_to_accuracy(str(layout), group, base) for layout, group in groups)


def _to_accuracy(layout: str, group: pd.DataFrame, base: pd.DataFrame) -> TimeToAccuracy:
    own, its = float(group["seconds"].median()), float(base["seconds"].median())
    known = math.isfinite(own) and math.isfinite(its)
    both = pd.concat([group["seconds"], base["seconds"]])
    same = set(group["run"]) == set(base["run"])
    return TimeToAccuracy(
        layout=layout,
        ranks=int(group["ranks"].iloc[0]),
        launches=len(group),
        reached=int(np.isfinite(group["seconds"]).sum()),
        seconds=own if math.isfinite(own) else None,
        speedup=its / own if known else None,
        interval=paired_ratio(base, group) if known and not same and np.isfinite(both).all() else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One layout of one sweep.

    `accuracy` is the test accuracy after the last epoch, median, least and greatest of all `launches`: what disturbs
    a launch spoils its times, not what it learned. `point` (time at equal samples) and `target` (time to equal
    accuracy) are of the launches whose times are valid, None where there is none.
    """

    layout: str
    ranks: int
    launches: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    point: PointScaling | None
    target: TimeToAccuracy | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sided:
    """One sweep: its layouts by ranks, and the scaling that their points are of, None without valid times."""

    sides: tuple[Side, ...]
    scaling: Scaling | None


def side_by_side(
    sweeps: Sequence[tuple[pd.DataFrame, pd.DataFrame]], goal: float, *, shared: bool = False
) -> tuple[Sided, ...]:
    """Return each of `sweeps`, pairs of `frames.launch_frame` and `frames.epoch_frame`; the first has the base.

    Times to the test accuracy `goal` are over the first sweep's fewest ranks. Speedups are over each sweep's own, or
    with `shared` over the first's where a sweep does not have that layout: one rank has nothing to synchronise, so
    that one launch of it serves all policies.
    """
    first = scale(sweeps[0][0])
    base_launches, base_epochs = (
        frame[frame["layout"] == first.base.layout] if first else frame.iloc[:0] for frame in sweeps[0]
    )
    base_times = times_to_accuracy(base_epochs, goal)
    return tuple(
        _sided(launches, epochs, base_launches if shared else base_launches.iloc[:0], base_times, goal)
        for launches, epochs in sweeps
    )


def _sided(
    launches: pd.DataFrame, epochs: pd.DataFrame, lent: pd.DataFrame, base_times: pd.DataFrame, goal: float
) -> Sided:
    own = set(launches["layout"])
    scaling = scale(launches if lent.empty or lent["layout"].iloc[0] in own else pd.concat([lent, launches]))
    points = {point.layout: point for point in scaling.points} if scaling else {}
    reached = speedups_to_accuracy(times_to_accuracy(epochs, goal), base_times)
    targets = {found.layout: found for found in reached}
    final = final_frame(launches.assign(valid=True))
    sides = tuple(
        Side(
            layout=row["layout"],
            ranks=int(row["ranks"]),
            launches=int(row["launches"]),
            accuracy=float(row["test_accuracy"]),
            accuracy_low=float(row["test_accuracy_low"]),
            accuracy_high=float(row["test_accuracy_high"]),
            point=points.get(row["layout"]),
            target=targets.get(row["layout"]),
        )
        for row in final.to_dict("records")
    )
    return Sided(sides=sides, scaling=scaling)
