"""Claims and judgements in a reader's words."""

from dataclasses import dataclass

import pandas as pd

from harness.analysis import numbers
from harness.analysis.scaling import Scaling
from harness.analysis.stats import NEEDED
from harness.claims import verdict as verdicts
from harness.claims.verdict import Judgement, PredictedRatio
from harness.schema.claim import Claim


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimRow:
    """One row of the claims table. `judged` is empty, ``good`` or ``bad``; `runs` are names and addresses."""

    claim: Claim
    figure: str
    value: str
    ours: str
    verdict: str
    judged: str
    predicted: str
    runs: tuple[tuple[str, str], ...]


def claim_row(
    judgement: Judgement,
    scaling: Scaling | None,
    final: pd.DataFrame | None,
    *,
    predicted: PredictedRatio | None = None,
    runs: tuple[tuple[str, str], ...] = (),
) -> ClaimRow:
    """Return the row of `judgement`; `scaling` and `final` (`learning.final_frame`) are of what ran here.

    `predicted` is the model's ratio on the claim's base, `runs` the names and addresses of the launches behind.
    """
    claim = judgement.claim
    good, bad = (verdicts.SAME,), (verdicts.OTHER_DIRECTION, verdicts.OTHER_SIZE)
    return ClaimRow(
        claim=claim,
        figure=_figure(claim),
        value=published(claim),
        ours=_ours(claim, scaling, final),
        verdict=verdict(judgement),
        judged="good" if judgement.verdict in good else "bad" if judgement.verdict in bad else "",
        predicted=_predicted(predicted),
        runs=runs,
    )


def _predicted(ratio: PredictedRatio | None) -> str:
    return numbers.NONE if ratio is None else f"{ratio.value:.2f} ({numbers.ratio_span(ratio.interval)})"


def published(claim: Claim) -> str:
    """Return the published value, how it was published, and no number where there is none."""
    if claim.value is None:
        return "chart without numbers"
    if claim.quantity == "accuracy":
        return f"accuracy {numbers.percent(claim.value)}"
    reading = f" ± {claim.reading:g}" if claim.reading else ""
    efficiency = "" if claim.efficiency is None or claim.erratum else f" ({numbers.percent(claim.efficiency)})"
    return f"{claim.value:g}{reading}{efficiency}"


def verdict(judgement: Judgement) -> str:
    """Return the judgement in words, with our number where there is one on the paper's base."""
    claim = judgement.claim
    if judgement.verdict == verdicts.ERRATUM:
        return f"not judged: {claim.erratum}"
    if judgement.verdict == verdicts.NEEDS_CORES:
        return f"not measurable here: needs {judgement.cores} {claim.units}"
    if judgement.verdict == verdicts.NOT_RUN:
        return "not measured: no valid run here"
    if judgement.verdict == verdicts.NEEDS_DATA:
        return "not measurable here: needs the real data"
    if judgement.verdict == verdicts.OTHER_WORK:
        return "not judged: the points did not do the same work"
    return _measured(judgement)


def _measured(judgement: Judgement) -> str:
    claim = judgement.claim
    assert judgement.ours is not None
    if claim.quantity == "accuracy":
        reached = "reached" if judgement.verdict == verdicts.SAME else "not reached"
        return f"{reached}: {numbers.percent(judgement.ours, 1)}"
    ours = f"{judgement.ours:.2f} here"
    if judgement.interval is not None:
        ours += f" (95 % interval {numbers.ratio_span(judgement.interval)})"
    if judgement.verdict == verdicts.OTHER_DIRECTION:
        return f"other direction: {ours}"
    if judgement.verdict == verdicts.SIZE_OPEN:
        why = "the chart has no numbers" if claim.value is None else f"an interval needs {NEEDED} launches"
        return f"same direction: {ours}; size open, {why}"
    size = "same size" if judgement.verdict == verdicts.SAME else "other size"
    return f"same direction, {size}: {ours}"


def _figure(claim: Claim) -> str:
    return f"Figure {claim.figure}" if claim.figure.isdigit() else claim.figure or "text"


def _ours(claim: Claim, scaling: Scaling | None, final: pd.DataFrame | None) -> str:
    if scaling is None or final is None:
        return numbers.NONE
    if claim.quantity == "accuracy":
        last = final.iloc[-1]
        return f"{numbers.percent(last['test_accuracy'], 1)} after {numbers.plural(int(last['epochs']), 'epoch')}"
    best = [point for point in scaling.others if point.speedup is not None]
    base = numbers.ranks(scaling.base.ranks)
    if not best:
        return f"{base} only"
    point = best[-1]
    interval = f", 95 % interval {numbers.ratio_span(point.speedup_interval)}" if point.speedup_interval else ""
    return f"{point.speedup:.2f} on {numbers.ranks(point.ranks)} over {base}{interval}"
