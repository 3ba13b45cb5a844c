"""How many batches and synchronisations an epoch has: one count for all predictions."""

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.schema.sync_policies import FORMS, SyncPolicy, known_policy
from harness.schema.workload import Workload

Array = NDArray[np.float64]


def epoch_batches(workload: Workload, rows: Array, batch: Array) -> Array:
    """Return the batches of an epoch of `rows`, `batch` rows each: the last one counts as the part that it is."""
    batches: Array = rows / batch
    return np.maximum(1.0, np.floor(batches)) if workload.drop_remainder else batches


def predictable_policy(sync: str) -> SyncPolicy:
    """Return the policy that `sync` names.

    Raises:
        UserError: it is the user's own code, which nothing that reads records imports.
    """
    policy = known_policy(sync)
    if policy is None:
        raise UserError(f"SYNC={sync} is not predicted, the policy is the user's own code: use one of {FORMS}")
    return policy


def epoch_calls(workload: Workload, batches: Array) -> Array:
    """Return the synchronisations of an epoch of `batches`: none without a sync policy."""
    steps = np.ceil(batches)
    calls: Array = steps / steps_between(workload, steps)
    return calls


def steps_between(workload: Workload, steps: Array) -> Array:
    """Return the mean steps from one synchronisation to the next, of an epoch of `steps`: infinite without any."""
    policy = predictable_policy(workload.sync)
    if policy.shares_gradients:
        return np.ones_like(steps)
    if not policy.synchronises:
        return np.full_like(steps, np.inf)
    return steps if policy.period is None else np.minimum(float(policy.period), steps)
