"""Prediction: what a sweep is expected to take, written down before it is measured (``prediction.json``)."""

from dataclasses import dataclass
from datetime import datetime

from harness.schema.workload import Workload

PREDICTION_FILE = "prediction.json"  # results/<sweep>/prediction.json


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedPoint:
    """One rank count. Seconds of a step, in three parts, and of an epoch, with its low and high end.

    `straggler_s` is the wait for the slowest rank, `allreduce_s` the synchronisation's share of a step.
    """

    ranks: int
    steps: int
    compute_s: float
    straggler_s: float
    allreduce_s: float
    step_s: float
    epoch_s: float
    epoch_low_s: float
    epoch_high_s: float
    speedup: float
    efficiency: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Predicted points of one workload, and all that they rest on.

    `base` says which measurement gave the computation, `network` which link costs were used; `assumptions` are
    sentences. `speedup` of the points is over `base_ranks` ranks.
    """

    schema: int
    made: datetime
    workload: Workload
    scaling: str
    algorithm: str
    base_ranks: int
    base: str
    network: str
    assumptions: tuple[str, ...]
    points: tuple[PredictedPoint, ...]
