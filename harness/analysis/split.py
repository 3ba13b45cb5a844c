"""Where the time goes: parts of an epoch and of a whole launch, and which rank the others wait for."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.frames import EpochTimes
from harness.spec.record import RunRecord

EPOCH_PARTS = ("compute_seconds", "input_seconds", "skew_seconds", "wire_seconds")
LAUNCH_PARTS = (
    "import_s",
    "load_s",
    "distribute_s",
    "compile_s",
    "trained_compute_s",
    "trained_input_s",
    "trained_sync_s",
    "evaluate_s",
    "overhead_s",
)
SLOW = 1.10  # computation of a rank over the median of the others' from which it is named
_WORTH = 0.02  # part of an epoch that others must wait, so that naming a rank helps anyone


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """A rank that the others of its launch waited for.

    `ratio` is its computation over the median of the others', `waited` the mean part of an epoch that they waited
    for the last rank.
    """

    run: str
    rank: int
    host: str
    ranks: int
    ratio: float
    waited: float


def split_frame(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout with valid launches: medians over launches, in seconds.

    The EPOCH_PARTS are of one epoch and sum to it: input, skew (waiting for the last rank) and wire (the sum over
    ranks itself) are means over ranks, computation is the rest of the slowest rank's epoch. The LAUNCH_PARTS are of a
    whole launch; the training parts are sums over its epochs, overhead is what no other part is.
    """
    valid = launches[launches["valid"]].sort_values(["ranks", "nodes", "threads"], kind="stable")
    parted = valid.assign(trained_compute_s=valid["trained_s"] - valid["trained_sync_s"] - valid["trained_input_s"])
    groups = parted.groupby(["layout", "ranks"], sort=False)
    return groups[[*EPOCH_PARTS, *LAUNCH_PARTS]].median().reset_index()


def slow_rank(run: RunRecord, times: EpochTimes) -> SlowRank | None:
    """Return the slowest rank of a launch where its computation is well above that of the others, else None.

    Computation is the epoch without input and synchronisation calls; sums over the epochs count. A rank is named when
    it computed more than SLOW times the median of the others and they waited for more than 2 % of the time.
    """
    if len(run.ranks) < 2 or not times.parted.all():
        return None
    seconds, skew = times.seconds.sum(axis=0), times.skew.sum(axis=0)
    compute = seconds - times.input.sum(axis=0) - times.sync.sum(axis=0)
    worst = int(compute.argmax())
    others = np.delete(np.arange(len(compute)), worst)
    ratio = float(compute[worst] / np.median(compute[others]))
    waited = float(skew[others].mean() / seconds.max())
    if ratio < SLOW or waited < _WORTH:
        return None
    return SlowRank(
        run=run.point.folder,
        rank=worst,
        host=run.ranks[worst].host,
        ranks=len(run.ranks),
        ratio=ratio,
        waited=waited,
    )
