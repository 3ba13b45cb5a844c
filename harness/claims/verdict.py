"""Published claims against what was measured, on the paper's own base or not at all, and against what is predicted."""

from dataclasses import dataclass

import pandas as pd

from harness.analysis.learning import final_frame
from harness.analysis.scaling import PointScaling, scale
from harness.analysis.stats import Interval
from harness.prediction.allreduce import BEST
from harness.prediction.model import Base, Uncertain, predict_ratio
from harness.schema.claim import Claim

ERRATUM = "erratum"
NOT_RUN = "not run"
NEEDS_CORES = "needs cores"
NEEDS_DATA = "needs data"
OTHER_WORK = "other work"
SAME = "same size"
OTHER_SIZE = "other size"
SIZE_OPEN = "size open"
OTHER_DIRECTION = "other direction"

JUDGED = (SAME, OTHER_SIZE, SIZE_OPEN, OTHER_DIRECTION)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A claim and what our launches say about it.

    `verdict` is one of this module's constants; `cores` is what the claim would need. `ours` is our value on
    the claim's own base and count, with its interval, None where it was not measured.
    """

    claim: Claim
    verdict: str
    cores: int
    ours: float | None = None
    interval: Interval | None = None


def judge(claim: Claim, launches: pd.DataFrame | None, *, real: bool) -> Judgement:
    """Return the judgement of `claim` by the valid rows of `launches` (`frames.launch_frame`), None: not run.

    Only layouts of one core per rank count, so that a paper's cores are our ranks. `real` says whether the
    launches trained on the real data: an accuracy is judged on nothing else.
    """
    cores = max(claim.base, claim.count)
    if claim.erratum:
        return Judgement(claim=claim, verdict=ERRATUM, cores=cores)
    valid = None if launches is None else launches[launches["valid"] & (launches["cores"] == launches["ranks"])]
    if valid is None or valid.empty:
        return Judgement(claim=claim, verdict=NOT_RUN, cores=cores)
    needed = {claim.count} if claim.quantity == "accuracy" else {claim.base, claim.count}
    if not needed <= set(valid["ranks"]):
        return Judgement(claim=claim, verdict=NEEDS_CORES, cores=cores)
    return _accuracy(claim, valid, real) if claim.quantity == "accuracy" else _speedup(claim, valid)


def _accuracy(claim: Claim, valid: pd.DataFrame, real: bool) -> Judgement:
    if not real:
        return Judgement(claim=claim, verdict=NEEDS_DATA, cores=claim.count)
    final = final_frame(valid[valid["ranks"] == claim.count])
    ours = float(final["test_accuracy"].iloc[0])
    assert claim.value is not None
    return Judgement(claim=claim, verdict=SAME if ours >= claim.value else OTHER_SIZE, cores=claim.count, ours=ours)


def _speedup(claim: Claim, valid: pd.DataFrame) -> Judgement:
    scaling = scale(valid, base_ranks=claim.base)
    assert scaling is not None
    point = next(point for point in scaling.points if point.ranks == claim.count)
    cores = max(claim.base, claim.count)
    if point.speedup is None:
        return Judgement(claim=claim, verdict=OTHER_WORK, cores=cores)
    return Judgement(
        claim=claim,
        verdict=_compare(claim, point),
        cores=cores,
        ours=point.speedup,
        interval=point.speedup_interval,
    )


def _compare(claim: Claim, point: PointScaling) -> str:
    """Direction by the side of 1, size by the interval: without one, the size stays open."""
    assert point.speedup is not None
    claimed = claim.value if claim.value is not None else 2.0  # a chart without numbers claims a gain, no size
    if (point.speedup > 1) != (claimed > 1):
        return OTHER_DIRECTION
    interval = point.speedup_interval
    if claim.value is None or interval is None:
        return SIZE_OPEN
    inside = interval.low - claim.reading <= claim.value <= interval.high + claim.reading
    return SAME if inside else OTHER_SIZE


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedRatio:
    """A predicted speedup, and the least and the most that the measured costs' intervals allow."""

    value: float
    interval: Interval


def predict_claim(claim: Claim, base: Base, network: Uncertain) -> PredictedRatio | None:
    """Return the predicted speedup at the claim's count over the claim's base, one core per rank.

    None for what the model does not speak of: accuracies, errata, weak scaling.
    """
    if claim.quantity != "speedup" or claim.erratum or base.scaling != "strong":
        return None
    value, interval = predict_ratio(base, claim.base, claim.count, network, BEST)
    return PredictedRatio(value=value, interval=interval)
