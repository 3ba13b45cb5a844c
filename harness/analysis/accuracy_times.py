"""Time to a test accuracy, and how much faster than the base it is reached."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.comparison import paired_ratio
from harness.analysis.confidence_intervals import Interval
from harness.analysis.launch_frames import final_frame

SLACK = 0.01  # the default target lies this far below the base's final accuracy: one percentage point


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
    """Return one row per valid launch of `epochs` (`launch_frames.epoch_frame`): its place, its session, seconds.

    `seconds` of training until the first epoch whose test accuracy is at least `target`, infinite if none is.
    """
    valid = epochs[epochs["valid"]]
    seconds = valid["trained_s"].where(valid["test_accuracy"] >= target, math.inf)
    keys = ["layout", "ranks", "repeat", "run", "session_begin", "session_end"]
    return valid.assign(seconds=seconds).groupby(keys, sort=False)["seconds"].min().reset_index()


def speedups_to_accuracy(times: pd.DataFrame, base: pd.DataFrame) -> tuple[TimeToAccuracy, ...]:
    """Return every layout of `times` over the launches `base` (rows of `times_to_accuracy`, one layout), by ranks."""
    groups = times.sort_values("ranks", kind="stable").groupby("layout", sort=False)
    return tuple(_to_accuracy(str(layout), group, base) for layout, group in groups)


def _to_accuracy(layout: str, group: pd.DataFrame, base: pd.DataFrame) -> TimeToAccuracy:
    seconds = float(group["seconds"].median())
    base_seconds = float(base["seconds"].median())
    both_reach = math.isfinite(seconds) and math.isfinite(base_seconds)
    all_reach = bool(np.isfinite(pd.concat([group["seconds"], base["seconds"]])).all())
    is_base = set(group["run"]) == set(base["run"])
    return TimeToAccuracy(
        layout=layout,
        ranks=int(group["ranks"].iloc[0]),
        launches=len(group),
        reached=int(np.isfinite(group["seconds"]).sum()),
        seconds=seconds if math.isfinite(seconds) else None,
        speedup=base_seconds / seconds if both_reach else None,
        interval=paired_ratio(base, group) if all_reach and not is_base else None,
    )
