"""Published claims against what was measured: by sweeps that ask the claim's question, or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from harness.analysis.read_results import standing
from harness.claims.claim_evidence import ClaimEvidence, compare_with_claim, is_about
from harness.claims.claim_rules import (
    ERRATUM,
    RULES,
    SERVERS,
    UNKNOWN,
    ClaimFinding,
    accuracy,
    measured_on,
    servers,
)
from harness.schema.claim import Claim


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A claim and what our launches say about it. `differences` are those of the sweeps that it rests on."""

    claim: Claim
    finding: ClaimFinding
    differences: tuple[str, ...] = ()


def judge_claim(claim: Claim, evidence: Sequence[ClaimEvidence], rates: pd.DataFrame) -> Judgement:
    """Return the judgement of `claim` by the sweeps in `evidence` and by a bench (`claim_rules.servers`).

    Sweeps that ask another question are left out and change nothing. Of the others those count first that have the
    claim's rank counts, then those that differ least from what the claim is about, then as `read_results.RULE` says.
    """
    if claim.erratum:
        return Judgement(claim=claim, finding=ClaimFinding(outcome=ERRATUM, said=claim.erratum))
    if claim.rule == SERVERS:
        return Judgement(claim=claim, finding=servers(claim, rates))
    about = [one for one in evidence if is_about(claim, one)]
    compared = {id(one): compare_with_claim(claim, one) for one in about}
    fit = [one for one in about if not compared[id(one)].refusals]
    if not fit:
        reasons = dict.fromkeys(compared[id(one)].refusals[0] for one in about)
        said = f"what ran asks another question: {'; '.join(reasons)}" if reasons else ""
        finding = ClaimFinding(outcome=UNKNOWN, said=said, missing="valid launches of it here")
        return Judgement(claim=claim, finding=finding)
    fit.sort(key=lambda one: standing(one.loaded), reverse=True)
    fit.sort(key=lambda one: (-_fitting_counts(claim, one), len(compared[id(one)].differences)))
    finding = _lacking(claim, fit[0]) or RULES[claim.rule](claim, fit)
    differences = dict.fromkeys(text for one in finding.used for text in compared[id(one)].differences)
    return Judgement(claim=claim, finding=finding, differences=tuple(differences))


def _fitting_counts(claim: Claim, one: ClaimEvidence) -> int:
    """Return how many of the rank counts that the claim speaks of `one` has; how many it has where there are none."""
    return len({claim.base, claim.count} & set(one.counts)) if claim.base else len(one.counts)


def _lacking(claim: Claim, best: ClaimEvidence) -> ClaimFinding | None:
    """Return the finding where no sweep has the rank counts that the claim needs, None where `best` has them."""
    if not claim.base:
        several = len(best.counts) > 1 or claim.rule == accuracy.__name__
        missing = "" if several else "several rank counts"
    else:
        missing = " and ".join(str(count) for count in (claim.base, claim.count) if count not in best.counts)
        missing = f"launches on {missing} {claim.units}" if missing else ""
    said = measured_on(best)
    return ClaimFinding(outcome=UNKNOWN, said=said, used=(best,), missing=missing) if missing else None
