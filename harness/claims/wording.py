"""Claims and judgements in a reader's words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import numbers
from harness.claims.finding import CONFIRMED, JUDGED, REFUTED, ratio
from harness.claims.verdict import Judgement, PredictedRatio
from harness.schema.claim import Claim


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimRow:
    """One row of the claims table. `judged` is empty, ``good`` or ``bad``; `runs` are names and addresses.

    `base` is what the claim is relative to, `ours` our speedup over our own base, `basis` what `predicted` rests on.
    """

    claim: Claim
    figure: str
    value: str
    base: str
    outcome: str
    said: str
    differences: tuple[str, ...]
    judged: str
    ours: str
    predicted: str
    basis: str
    runs: tuple[tuple[str, str], ...]


def claim_row(
    judgement: Judgement, predicted: PredictedRatio | None = None, runs: tuple[tuple[str, str], ...] = ()
) -> ClaimRow:
    """Return the row of `judgement`; `runs` are the names and addresses of the launches behind it."""
    claim, finding = judgement.claim, judgement.finding
    return ClaimRow(
        claim=claim,
        figure=_figure(claim),
        value=published(claim),
        base=_base(claim),
        outcome=finding.outcome,
        said=finding.said,
        differences=judgement.differences,
        judged={CONFIRMED: "good", REFUTED: "bad"}.get(finding.outcome, ""),
        ours=_ours(judgement),
        predicted=f"{predicted.value:.2f} ({numbers.ratio_span(predicted.interval)})" if predicted else numbers.NONE,
        basis=predicted.base if predicted else "",
        runs=runs,
    )


def headline(judgements: Sequence[Judgement]) -> str:
    """Return how many claims have which outcome."""
    counts = Counter(one.finding.outcome for one in judgements)
    judged = [f"{counts[outcome]} {outcome}" for outcome in JUDGED if counts[outcome]]
    number = sum(counts[outcome] for outcome in JUDGED)
    text = f"{number or 'None'} of {len(judgements)} claims can be judged by what ran here"
    text += f": {', '.join(judged)}." if judged else "."
    others = [f"{count} {outcome}" for outcome, count in counts.items() if outcome not in JUDGED]
    return f"{text} The rest: {', '.join(others)}." if others else text


def published(claim: Claim) -> str:
    """Return the published value, how it was published, and no number where there is none."""
    if claim.value is None:
        return "chart without numbers" if claim.kind == "chart" else "in words"
    if claim.quantity == "accuracy":
        return f"{numbers.percent(claim.value)} accuracy"
    reading = f" ± {claim.reading:g}" if claim.reading else ""
    efficiency = "" if claim.efficiency is None or claim.erratum else f" ({numbers.percent(claim.efficiency)})"
    return f"{claim.value:g}{reading}{efficiency}"


def _base(claim: Claim) -> str:
    if not claim.base:
        return numbers.NONE
    return f"{claim.count} {claim.units} over {claim.base}"


def _figure(claim: Claim) -> str:
    return f"Figure {claim.figure}" if claim.figure.isdigit() else claim.figure or "text"


def _ours(judgement: Judgement) -> str:
    """Return the speedup from the fewest to the most ranks of the sweep behind, where the claim is about a curve."""
    used = judgement.finding.used
    if not used or not judgement.claim.base:
        return numbers.NONE
    one = used[0]
    measured = ratio(one.launches, one.counts[0], one.counts[-1]) if len(one.counts) > 1 else None
    return str(measured) if measured else f"{numbers.ranks(one.counts[0])} only"
