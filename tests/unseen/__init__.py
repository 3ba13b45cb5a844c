"""Random things that nobody has named: each must be right or refused."""

import os


def day_seed(default: int = 1) -> int:
    """Return the seed in UNSEEN_SEED, which .ci/run draws each day and writes into its log, else `default`."""
    return int(os.environ.get("UNSEEN_SEED", default))
