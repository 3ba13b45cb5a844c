"""What the model says about a claim that this machine cannot measure."""

from dataclasses import dataclass

from harness.prediction.allreduce import BEST
from harness.prediction.model import Base, Uncertain, predict
from harness.schema.claim import Claim


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedRatio:
    """A predicted speedup with the ends that the measured costs' intervals give."""

    value: float
    low: float
    high: float


def predict_claim(claim: Claim, base: Base, network: Uncertain) -> PredictedRatio | None:
    """Return the predicted speedup at the claim's count over the claim's base, one core per rank.

    None for what the model does not speak of: accuracies, errata, weak scaling.
    """
    if claim.quantity != "speedup" or claim.erratum or base.scaling != "strong":
        return None
    frame = predict(base, [claim.base, claim.count], network, BEST)
    ratios = [float(frame[name].iloc[0] / frame[name].iloc[1]) for name in ("epoch_s", "epoch_low_s", "epoch_high_s")]
    return PredictedRatio(value=ratios[0], low=min(ratios), high=max(ratios))
