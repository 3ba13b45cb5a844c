"""The time of a point and the base's time over it: of launches one after the other, and of launches in turns."""

import math
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np
import pandas as pd

from harness.analysis.comparison import block_log_ratios, paired_ratio, undisturbed_launches
from harness.analysis.confidence_intervals import Interval, mean_over_blocks, median_interval, ratio_over_blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class PointTimes:
    """A point's epoch time in seconds and the base's over it (`ratio`, None where the work differs), with intervals.

    `blocks`: in how many blocks it trained in turns with the base, 0 for launches one after the other.
    """

    seconds: float
    seconds_interval: Interval | None
    ratio: float | None
    ratio_interval: Interval | None
    blocks: int = 0


def times_of_launches(launches: pd.DataFrame, base: pd.DataFrame, *, compared: bool, is_base: bool) -> PointTimes:
    """Return the times of launches one after the other: medians, and their ratio where they are `compared`.

    `launches` and `base` are valid rows of `launch_frames.launch_frame` of one layout each.
    """
    seconds = float(launches["seconds"].median())
    return PointTimes(
        seconds=seconds,
        seconds_interval=median_interval(launches["seconds"]),
        ratio=float(base["seconds"].median()) / seconds if compared else None,
        ratio_interval=paired_ratio(base, launches) if compared and not is_base else None,
    )


def times_in_turns(
    launches: pd.DataFrame, base: pd.DataFrame, *, compared: bool, is_base: bool, as_it_ran: bool
) -> PointTimes:
    """Return the times of launches in turns: geometric means over launches, and the ratio over their blocks.

    The point's time is the base's over the ratio, so that both are of the same moments also where blocks are missing.
    """
    column = "ran_seconds" if as_it_ran else "seconds"
    if not as_it_ran:
        launches = undisturbed_launches(launches)
        base = undisturbed_launches(base)
    seconds = geometric_mean(launches[column].tolist())
    spread = mean_over_blocks(np.log(launches[column].to_numpy(dtype=float)))
    ratio = 1.0 if is_base else None
    ratio_interval = None
    log_ratios: list[float] = []
    if compared and not is_base:
        base_seconds = geometric_mean(base[column].tolist())
        ratio = base_seconds / seconds
        log_ratios = block_log_ratios(base, launches, as_it_ran=as_it_ran)
        if log_ratios:
            ratio = math.exp(float(np.mean(log_ratios)))
            seconds = base_seconds / ratio
        over_blocks = ratio_over_blocks(log_ratios)
        ratio_interval = over_blocks.interval if over_blocks else None
    around = None
    if spread:
        around = Interval(low=seconds * math.exp(-spread.reach), high=seconds * math.exp(spread.reach))
    return PointTimes(
        seconds=seconds,
        seconds_interval=around,
        ratio=ratio,
        ratio_interval=ratio_interval,
        blocks=len(log_ratios),
    )
