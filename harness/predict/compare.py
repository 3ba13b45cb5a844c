"""Predicted steps against simulated ones."""

import numpy as np
import pandas as pd

from harness.analysis.allreduce import BEST, Levels, Link, allreduce_seconds
from harness.analysis.predict import Base
from harness.errors import UserError
from harness.predict.simgrid import ALGORITHMS, LIMIT, simulate_step
from harness.spec.sync import SyncSpec


def simulated(base: Base, frame: pd.DataFrame, link: Link, algorithm: str) -> pd.Series:
    """Return SimGrid's seconds of a step for each row of `frame` (`analysis.predict.predict`), NaN beyond its limit.

    ``best`` is simulated with the algorithm that the closed form takes for that count.

    Raises:
        UserError: the workload does not synchronise every step, or SimGrid is not installed.
        RunError: the simulator failed.
    """
    if SyncSpec.parse(base.workload.sync).what != "gradients":
        raise UserError(f"--simulate knows SYNC=gradients only, and this base has {base.workload.sync}")
    seconds = []
    for ranks, compute in zip(frame["ranks"], frame["compute_s"], strict=True):
        if ranks > LIMIT:
            seconds.append(np.nan)
        elif ranks == 1:
            seconds.append(float(compute))
        else:
            chosen = algorithm if algorithm != BEST else cheapest(int(ranks), base.bytes, link)
            step = simulate_step(
                ranks=int(ranks), size=base.bytes, compute_s=float(compute), link=link, algorithm=chosen,
                jitter=base.jitter,
            )  # fmt: skip
            seconds.append(step)
    return pd.Series(seconds, index=frame.index, dtype=float)


def cheapest(ranks: int, size: int, link: Link) -> str:
    """Return the algorithm whose closed form is least for an allreduce of `size` bytes over `ranks`."""
    levels = Levels(network=link)
    return min(ALGORITHMS, key=lambda name: float(allreduce_seconds(name, [ranks], size, levels)[0]))
