"""Loss and accuracy, against time and against samples: is what was timed also training?"""

import pandas as pd

from harness.analysis.frames import METRICS


def curve_frame(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout and epoch: medians over the valid launches of `epochs` (`frames.epoch_frame`).

    Columns: layout, ranks, epoch, launches, trained_s (training seconds so far), rows_seen and the metrics,
    each also as NAME_low and NAME_high (least and greatest launch).
    """
    valid = epochs[epochs["valid"]].sort_values("ranks", kind="stable")
    groups = valid.groupby(["layout", "ranks", "epoch"], sort=False)
    frame = groups[["trained_s", "rows_seen", *METRICS]].median()
    lows, highs = groups[list(METRICS)].min(), groups[list(METRICS)].max()
    frame = frame.join(lows.add_suffix("_low")).join(highs.add_suffix("_high"))
    frame.insert(0, "launches", groups.size())
    return frame.reset_index()


def final_frame(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout: the metrics after the last epoch, medians, least and greatest launch.

    The last epoch, not the best one: choosing by the test rows would flatter.
    """
    valid = launches[launches["valid"]].sort_values(["ranks", "nodes", "threads"], kind="stable")
    groups = valid.groupby(["layout", "ranks"], sort=False)
    frame = groups[["epochs", "trained_s", *METRICS]].median()
    lows, highs = groups[list(METRICS)].min(), groups[list(METRICS)].max()
    frame = frame.join(lows.add_suffix("_low")).join(highs.add_suffix("_high"))
    frame.insert(0, "launches", groups.size())
    return frame.reset_index()
