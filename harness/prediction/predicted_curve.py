"""What `harness predict` says of one workload: the closed form over a network, for any counts and another policy."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from harness.analysis.confidence_intervals import Interval
from harness.analysis.read_results import Loaded
from harness.prediction.measured_base import MeasuredBase, measured_base, under
from harness.prediction.network_cost import Uncertain
from harness.prediction.step_model import predict_network, predict_ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedCurve:
    """What is predicted from `base`: `frame` by the network's costs (`step_model.predict`).

    `speedup` is that of the most ranks over the base by the network's costs, with the least and the most that the
    intervals of all measured costs allow. `sync`: the policy that it is predicted for instead of its launches' own.
    """

    base: MeasuredBase
    sync: str
    frame: pd.DataFrame
    speedup: float
    interval: Interval

    @property
    def name(self) -> str:
        """The workload's, and the policy's where that is another."""
        return f"{self.base.workload.name}{self.sync and f', {self.sync}'}"


def predict_curve(loaded: Loaded, counts: Sequence[int], network: Uncertain, sync: str = "") -> PredictedCurve:
    """Return the prediction for `counts` ranks from the valid launches of `loaded`, as if they had the policy `sync`.

    Raises:
        UserError: what the policy would sum is unknown.
    """
    base = measured_base(loaded)
    if sync:
        base = under(base, sync)
    ratio, interval = predict_ratio(base, base.ranks, counts[-1], network)
    work = 1.0 if base.scaling == "strong" else counts[-1] / base.ranks
    return PredictedCurve(
        base=base,
        sync=sync,
        frame=predict_network(base, counts, network),
        speedup=ratio * work,
        interval=interval.scaled(work),
    )
