"""Where the time goes: parts of an epoch and of a whole launch, per point."""

import pandas as pd

EPOCH_PARTS = ("compute_seconds", "sync_seconds")
LAUNCH_PARTS = (
    "import_s",
    "load_s",
    "distribute_s",
    "compile_s",
    "trained_compute_s",
    "trained_sync_s",
    "evaluate_s",
)


def split_frame(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout with valid launches: medians over launches, in seconds.

    compute_seconds and sync_seconds are of one epoch: synchronisation is the mean over ranks of the time
    inside synchronisation calls (waiting for others included), computation the rest of the slowest rank's
    epoch. The LAUNCH_PARTS are of a whole launch; the training parts are sums over its epochs.
    """
    valid = launches[launches["valid"]].sort_values(["ranks", "nodes", "threads"], kind="stable")
    parted = valid.assign(trained_compute_s=valid["trained_s"] - valid["trained_sync_s"])
    groups = parted.groupby(["layout", "ranks"], sort=False)
    return groups[[*EPOCH_PARTS, *LAUNCH_PARTS]].median().reset_index()
