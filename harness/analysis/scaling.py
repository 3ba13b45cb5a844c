"""The scaling table: what each point took, and how much faster than the base that is, at equal samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.block_table import BlockTable, LayoutTimes, block_table, trained_in_turns
from harness.analysis.comparison import (
    base_launches,
    different_work,
    in_layout_order,
    undisturbed_launches,
)
from harness.analysis.confidence_intervals import FEWEST_BLOCKS, BlockMean, Interval, mean_over_blocks
from harness.analysis.launch_frames import between

_OF_A_POINT = ("layout", "nodes", "ranks", "threads", "epochs", "rows", "global_batch")
_OF_A_LAYOUT = (*_OF_A_POINT, "scaling", "cores", "steps", "all_rows")
_OTHER_SESSION = "another session than the base's: no interval"  # what lies between sessions is in no launch's scatter


@dataclass(frozen=True, kw_only=True, slots=True)
class PointScaling:
    """One layout's row of the scaling table. Times in seconds per epoch; intervals are None below 3 launches.

    Launches in turns have two times, excluding contended rounds (`seconds`) and including interference (`ran_seconds`),
    and a speedup of each; the ratio of the base's time to the point's is the speedup (strong scaling). The
    `ran_` fields are None for launches one after the other, whose times include interference.

    `speedup` is relative to the base (scaled speedup under weak scaling), and None where the work differs from the
    base's. `ideal` is the ratio of the ranks. `efficiency` is speedup over the ratio of the cores, which is the same
    where all ranks have the same number of threads. `step_seconds` is a launch's epoch time over its steps. `between`
    is the relative standard deviation of the launches (None for one), `within` the median over launches of that of
    their epochs (None for one epoch); `outliers` counts launches that stand out. `other_session`: launched in other
    sessions than the base, so that its speedup has no interval. `blocks`: in how many it was launched with the base,
    in turns or in a repeat, so that speedup and interval are of these; 0 where its launches and the base's count as
    unrelated. `flags` are short sentences: superlinear, indivisible, not comparable, in another session.
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
    times are including interference. `short_blocks` of these have too few rounds in all: a launch made too few steps.
    """

    scaling: str
    base: PointScaling
    points: tuple[PointScaling, ...]
    unequal_cores: BlockMean | None = None
    left_out: float = 0.0
    disturbed_blocks: int = 0
    short_blocks: int = 0

    @property
    def repeats(self) -> tuple[int, int]:
        """The fewest and the most valid launches of a point."""
        counts = [point.launches for point in self.points]
        return min(counts), max(counts)

    @property
    def others(self) -> tuple[PointScaling, ...]:
        """The points that are not the base."""
        return tuple(point for point in self.points if point is not self.base)

    @property
    def has_turns(self) -> bool:
        """Whether the launches trained in turns, so that each point has a second time, including interference."""
        return self.base.ran_seconds is not None

    @property
    def is_as_it_ran(self) -> bool:
        """Whether no block has times excluding contended rounds: then both times of a point include interference."""
        return self.base.ran_seconds == self.base.seconds


def scale(launches: pd.DataFrame, *, base_ranks: int | None = None) -> Scaling | None:
    """Return the scaling of the valid rows of `launches` (see `launch_frames.launch_frame`), None if there are none.

    The base is that of `comparison.base_launches`: the smallest rank count that has valid launches, or `base_ranks`.

    Raises:
        UserError: `base_ranks` has no valid launch.
    """
    valid = launches[launches["valid"]]
    if valid.empty:
        return None
    base = base_launches(valid, base_ranks)
    base_layout = str(base["layout"].iloc[0])
    excluded = launches[~launches["valid"]]["layout"].value_counts()
    in_turns = trained_in_turns(valid)
    table = block_table(valid, base_layout)
    table_as_it_ran = block_table(valid, base_layout, as_it_ran=True) if in_turns else None
    facts = _layout_facts(in_layout_order(valid))
    points = tuple(_point(layout, facts[base_layout], excluded, table, table_as_it_ran) for layout in facts.values())
    base_point = next(point for point in points if point.layout == base_layout)
    scaling = Scaling(scaling=str(base["scaling"].iloc[0]), base=base_point, points=points)
    return _with_blocks(scaling, valid, base) if in_turns else scaling


@dataclass(frozen=True, kw_only=True, slots=True)
class _LayoutFacts:
    """What a row of the scaling table has of a layout's valid launches beside their times.

    `first` is the first of them, a row of `launch_frames.launch_frame`, `within` the median of that column.
    """

    first: Mapping[str, Any]
    launches: int
    outliers: int
    within: float


def _layout_facts(valid: pd.DataFrame) -> dict[str, _LayoutFacts]:
    """Return the facts of each layout of the launches `valid`, in the order of these."""
    groups = valid.groupby("layout", sort=False)
    counts = groups.size()
    outliers = groups["outlier"].sum()
    within = groups["within"].median()
    facts = {}
    for first in valid.drop_duplicates("layout")[list(_OF_A_LAYOUT)].to_dict("records"):
        layout = first["layout"]
        facts[layout] = _LayoutFacts(
            first={str(name): value for name, value in first.items()},
            launches=int(counts[layout]),
            outliers=int(outliers[layout]),
            within=float(within[layout]),
        )
    return facts


def _with_blocks(scaling: Scaling, valid: pd.DataFrame, base: pd.DataFrame) -> Scaling:
    """Return `scaling` with what the blocks of its launches say of cores and of other work."""
    blocks = list({id(block): block for block in valid["turn_block"]}.values())
    base_runs = set(base["run"])
    excesses = [
        math.expm1(block.slowest_core) for block in blocks if block.slowest_core is not None and block.base in base_runs
    ]
    return replace(
        scaling,
        unequal_cores=mean_over_blocks(excesses),
        left_out=float(np.mean([block.left_out for block in blocks])),
        disturbed_blocks=sum(not block.undisturbed for block in blocks),
        short_blocks=sum(block.is_short for block in blocks),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Factors:
    """What makes the ratio of two epoch times a speedup, and what makes it an efficiency.

    Strong scaling: the same rows in less time. Weak scaling: more rows in the same time.
    """

    ideal: float
    to_speedup: float
    to_efficiency: float


def _factors(first: Mapping[str, Any], base: Mapping[str, Any]) -> _Factors:
    """Return the factors of the point of which `first` is a launch, over that of which `base` is one."""
    ideal = first["ranks"] / base["ranks"]
    to_speedup = 1.0 if first["scaling"] == "strong" else ideal
    cores = first["cores"] / base["cores"]
    return _Factors(ideal=ideal, to_speedup=to_speedup, to_efficiency=to_speedup / cores)


def _point(
    facts: _LayoutFacts,
    base: _LayoutFacts,
    excluded: pd.Series,
    table: BlockTable,
    table_as_it_ran: BlockTable | None,
) -> PointScaling:
    """Return the row of the layout of `facts`; `excluded` counts the launches that are not valid by layout.

    `table_as_it_ran` is None for launches one after the other, whose times are including interference.
    """
    first = facts.first
    layout = first["layout"]
    factors = _factors(first, base.first)
    why_different = different_work(first, base.first)
    compared = not why_different
    times = table.times(layout, compared=compared)
    efficiency = _times(times.ratio, factors.to_efficiency)
    efficiency_interval = _scaled(times.ratio_interval, factors.to_efficiency)
    has_enough = min(base.launches, facts.launches) >= FEWEST_BLOCKS
    lacks_interval = facts is not base and has_enough and times.ratio_interval is None
    other_session = table_as_it_ran is None and compared and lacks_interval
    flags = (
        why_different,
        _OTHER_SESSION if other_session else "",
        _superlinear(efficiency, efficiency_interval),
        *_indivisible(first),
    )
    as_it_ran = {}
    if table_as_it_ran:
        as_it_ran = _as_it_ran(table_as_it_ran.times(layout, compared=compared), factors)
    return PointScaling(
        **{name: first[name] for name in _OF_A_POINT},
        launches=facts.launches,
        excluded=int(excluded.get(layout, 0)),
        seconds=times.seconds,
        seconds_interval=times.seconds_interval,
        step_seconds=times.seconds / first["steps"],
        step_interval=_scaled(times.seconds_interval, 1 / first["steps"]),
        between=between(table.cells[layout].seconds),
        within=None if math.isnan(facts.within) else facts.within,
        outliers=facts.outliers,
        rows_per_second=first["rows"] / times.seconds,
        ideal=factors.ideal,
        speedup=_times(times.ratio, factors.to_speedup),
        speedup_interval=_scaled(times.ratio_interval, factors.to_speedup),
        efficiency=efficiency,
        efficiency_interval=efficiency_interval,
        other_session=other_session,
        blocks=times.blocks,
        flags=tuple(flag for flag in flags if flag),
        **as_it_ran,
    )


def _as_it_ran(times: LayoutTimes, factors: _Factors) -> dict[str, Any]:
    """Return the fields of a point in turns that are of its times with other work on the machine."""
    return {
        "ran_seconds": times.seconds,
        "ran_speedup": _times(times.ratio, factors.to_speedup),
        "ran_speedup_interval": _scaled(times.ratio_interval, factors.to_speedup),
        "ran_efficiency": _times(times.ratio, factors.to_efficiency),
    }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    return None if interval is None else interval.scaled(factor)


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


def _indivisible(first: Mapping[str, Any]) -> list[str]:
    rows = first["all_rows"]
    ranks = first["ranks"]
    batch = first["global_batch"]
    flags = []
    if rows % ranks:
        flags.append(f"{rows:,} rows do not divide by {ranks} ranks")
    if rows % batch and rows != first["rows"]:
        flags.append(f"the last {rows % batch:,} rows of an epoch fill no batch of {batch:,} and are left out")
    return flags


def needed_launches(scaling: Scaling) -> int:
    """Return how many launches the point with fewest launches still needs for an interval, 0 where none does."""
    return max(0, FEWEST_BLOCKS - scaling.repeats[0])


def ratios_frame(scaling: Scaling, launches: pd.DataFrame) -> pd.DataFrame:
    """Return the valid rows of `launches` with speedup and efficiency of each.

    It is that of the launch's block, NaN in a block without the base. Where launches are compared as unrelated ones it
    is the base's time over the launch's. Points whose work differs from the base's get NaN.
    """
    points = {point.layout: point for point in scaling.points}
    valid = in_layout_order(launches[launches["valid"]], then=("repeat",))
    base = valid[valid["layout"] == scaling.base.layout]
    cells = block_table(valid, scaling.base.layout).cells.values()
    log_ratio = pd.concat(pd.Series(of_layout.log_ratio, index=of_layout.rows) for of_layout in cells)
    valid = undisturbed_launches(valid)
    point_of_launch = valid["layout"].map(points)
    is_paired = point_of_launch.map(lambda point: point.blocks > 0)
    is_compared = point_of_launch.map(lambda point: point.speedup is not None)
    speedup = (scaling.base.seconds / valid["seconds"]).where(~is_paired, np.exp(log_ratio))
    speedup = speedup.where(is_compared)
    if scaling.scaling != "strong":
        speedup *= point_of_launch.map(lambda point: point.ideal)
    return valid.assign(speedup=speedup, efficiency=speedup / (valid["cores"] / base["cores"].iloc[0]))


def parts_of_points(scaling: Scaling, parts: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return `parts` (`launch_frames.breakdown_frame`), those `columns` scaled to sum to the time of their point."""
    seconds = parts["layout"].map({point.layout: point.seconds for point in scaling.points})
    return parts.assign(**parts[list(columns)].mul(seconds / parts[list(columns)].sum(axis=1), axis=0))
