"""Time to a target accuracy: what a speedup at equal samples is worth as training.

A policy that synchronises seldom trains faster per row and learns less per row. Only the time to a given
accuracy weighs both (Coleman et al., "DAWNBench", NIPS ML Systems Workshop 2017).
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.learning import final_frame
from harness.analysis.scaling import paired_ratio
from harness.analysis.stats import Interval

SLACK = 0.01  # the default target lies this far below the base's final accuracy: one percentage point


@dataclass(frozen=True, kw_only=True, slots=True)
class ToTarget:
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


def default_target(launches: pd.DataFrame, base_layout: str) -> float | None:
    """Return the base's median final test accuracy less `SLACK`, None where it was not tested."""
    final = final_frame(launches)
    accuracy = float(final.loc[final["layout"] == base_layout, "test_accuracy"].iloc[0])
    return None if math.isnan(accuracy) else accuracy - SLACK


def times_to(epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return one row per valid launch of `epochs` (`frames.epoch_frame`): layout, ranks, repeat, run, seconds.

    `seconds` of training until the first epoch whose test accuracy is at least `target`, infinite if none is.
    """
    valid = epochs[epochs["valid"]]
    there = valid["trained_s"].where(valid["test_accuracy"] >= target, math.inf)
    keys = ["layout", "ranks", "repeat", "run"]
    return valid.assign(seconds=there).groupby(keys, sort=False)["seconds"].min().reset_index()


def to_target(times: pd.DataFrame, base: pd.DataFrame) -> tuple[ToTarget, ...]:
    """Return every layout of `times` over the launches `base` (rows of `times_to`, of one layout), by ranks."""
    groups = times.sort_values("ranks", kind="stable").groupby("layout", sort=False)
    return tuple(_layout(str(layout), group, base) for layout, group in groups)


def _layout(layout: str, group: pd.DataFrame, base: pd.DataFrame) -> ToTarget:
    own, its = float(group["seconds"].median()), float(base["seconds"].median())
    known = math.isfinite(own) and math.isfinite(its)
    both = pd.concat([group["seconds"], base["seconds"]])
    same = set(group["run"]) == set(base["run"])
    return ToTarget(
        layout=layout,
        ranks=int(group["ranks"].iloc[0]),
        launches=len(group),
        reached=int(np.isfinite(group["seconds"]).sum()),
        seconds=own if math.isfinite(own) else None,
        speedup=its / own if known else None,
        interval=paired_ratio(base, group) if known and not same and np.isfinite(both).all() else None,
    )
