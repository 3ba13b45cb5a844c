"""Published claims against what was measured: by sweeps that ask the claim's question, or not at all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from harness.analysis.read_results import standing
from harness.analysis.stats import Interval
from harness.claims import curves, text_rules
from harness.claims.evidence import ClaimEvidence, compare, is_about
from harness.claims.finding import ERRATUM, NOT_COMPARABLE, NOT_MEASURED, ClaimFinding
from harness.prediction.network_cost import BEST, Uncertain
from harness.prediction.step_model import Base, predict_ratio
from harness.schema.claim import Claim

Rule = Callable[[Claim, Sequence[ClaimEvidence]], ClaimFinding]

RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        curves.speedup, curves.progress, curves.gains, curves.tapers, curves.modest, curves.wider,
        text_rules.accuracy, text_rules.longer, text_rules.reading, text_rules.volume, text_rules.equivalent,
    )
}  # fmt: skip
SERVERS = "servers"  # judged by a bench


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A claim and what our launches say about it. `differences` are those of the sweeps that it rests on."""

    claim: Claim
    finding: ClaimFinding
    differences: tuple[str, ...] = ()


def judge_all(claims: Iterable[Claim], evidence: Sequence[ClaimEvidence], rates: pd.DataFrame) -> tuple[Judgement, ...]:
    """Return the judgement of each of `claims` (`judge`)."""
    return tuple(judge(claim, evidence, rates) for claim in claims)


def judge(claim: Claim, evidence: Sequence[ClaimEvidence], rates: pd.DataFrame) -> Judgement:
    """Return the judgement of `claim` by the sweeps in `evidence` and by a bench (`text_rules.servers`).

    Sweeps that ask another question are left out and change nothing. Of the others those count first that have the
    claim's rank counts, then those that differ least from what the claim is about, then as `choice.RULE` says.
    """
    if claim.erratum:
        return Judgement(claim=claim, finding=ClaimFinding(outcome=ERRATUM, said=claim.erratum))
    if claim.rule == SERVERS:
        return Judgement(claim=claim, finding=text_rules.servers(claim, rates))
    about = [one for one in evidence if is_about(claim, one)]
    compared = {id(one): compare(claim, one) for one in about}
    fit = [one for one in about if not compared[id(one)].refusals]
    if not fit:
        return Judgement(claim=claim, finding=_nothing([compared[id(one)].refusals[0] for one in about]))
    fit.sort(key=lambda one: standing(one.loaded), reverse=True)
    fit.sort(key=lambda one: (-_fitting_counts(claim, one), len(compared[id(one)].differences)))
    lacking = _lacking(claim, fit)
    finding = lacking or RULES[claim.rule](claim, fit)
    said = dict.fromkeys(text for one in finding.used for text in compared[id(one)].differences)
    return Judgement(claim=claim, finding=finding, differences=tuple(said))


def _nothing(reasons: Sequence[str]) -> ClaimFinding:
    if not reasons:
        return ClaimFinding(outcome=NOT_MEASURED, said="no valid launch of it here")
    return ClaimFinding(outcome=NOT_COMPARABLE, said="; ".join(dict.fromkeys(reasons)))


def _fitting_counts(claim: Claim, one: ClaimEvidence) -> int:
    """Return how many of the rank counts that the claim speaks of `one` has; how many it has where there are none."""
    return len({claim.base, claim.count} & set(one.counts)) if claim.base else len(one.counts)


def _lacking(claim: Claim, fit: Sequence[ClaimEvidence]) -> ClaimFinding | None:
    """Return the finding where no sweep has the rank counts that the claim needs, None where one has."""
    best = fit[0]
    if not claim.base:
        several = len(best.counts) > 1 or claim.rule == text_rules.accuracy.__name__
        return None if several else ClaimFinding(outcome=NOT_MEASURED, said="needs several rank counts", used=(best,))
    if {claim.base, claim.count} <= set(best.counts):
        return None
    here = ", ".join(map(str, best.counts))
    missing = " and ".join(str(count) for count in (claim.base, claim.count) if count not in best.counts)
    return ClaimFinding(outcome=NOT_MEASURED, said=f"needs {missing} {claim.units}, measured on {here}", used=(best,))


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedRatio:
    """A predicted speedup, the least and the most that the measured costs' intervals allow, and its base in words."""

    value: float
    interval: Interval
    base: str


def predict_claim(claim: Claim, base: Base, network: Uncertain) -> PredictedRatio:
    """Return the predicted speedup at the claim's count over the claim's base, one core per rank."""
    value, interval = predict_ratio(base, claim.base, claim.count, network, BEST)
    return PredictedRatio(value=value, interval=interval, base=base.source)
