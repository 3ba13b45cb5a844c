"""Published claims against what was measured: by sweeps that ask the claim's question, or not at all.

What a measurement leaves open a prediction for the paper's testbed may be in line with, or not; it decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from harness.analysis.read_results import standing
from harness.claims.claim_evidence import ClaimEvidence, compare_with_claim, foresee, is_about
from harness.claims.claim_rules import (
    ERRATUM,
    IN_LINE,
    NOT_IN_LINE,
    REFUTED,
    RULES,
    SERVERS,
    UNKNOWN,
    ClaimFinding,
    CountRatio,
    accuracy,
    count_ratio,
    measured_on,
    servers,
)
from harness.schema.claim import Claim, Paper


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A claim and what our launches say about it. `differences` are those of the sweeps that it rests on.

    `predicted`: what they let expect of its counts on the paper's testbed, None where that is not known.
    """

    claim: Claim
    finding: ClaimFinding
    differences: tuple[str, ...] = ()
    predicted: CountRatio | None = None


def judge_claim(
    claim: Claim, evidence: Sequence[ClaimEvidence], rates: pd.DataFrame, paper: Paper | None = None
) -> Judgement:
    """Return the judgement of `claim` by the sweeps in `evidence` and by a bench (`claim_rules.servers`).

    With its `paper`, by a prediction for that one's testbed too, where measurements leave it open.

    Sweeps that ask another question are left out and change nothing. Of the others those count first that have the
    claim's rank counts, then those that differ least from what the claim is about, then as `read_results.RULE` says.
    """
    if claim.erratum:
        return Judgement(claim=claim, finding=ClaimFinding(outcome=ERRATUM, said=claim.erratum))
    if claim.rule == SERVERS:
        return Judgement(claim=claim, finding=servers(rates))
    about = [one for one in evidence if is_about(claim, one)]
    compared = {id(one): compare_with_claim(claim, one) for one in about}
    able = [one for one in about if not compared[id(one)].other]
    able.sort(key=lambda one: standing(one.loaded), reverse=True)
    wanted = {claim.base, claim.count} if claim.base else set[int]()
    fitting = {id(one): len(wanted & set(one.counts)) if wanted else len(one.counts) for one in able}
    able.sort(key=lambda one: (-fitting[id(one)], len(compared[id(one)].differences)))
    fit = [one for one in able if not compared[id(one)].few]
    if fit:
        finding = _lacking(claim, fit[0]) or RULES[claim.rule](claim, fit)
    else:
        reasons = dict.fromkeys(compared[id(one)].refusals[0] for one in about)
        said = f"what ran asks another question: {'; '.join(reasons)}" if reasons else ""
        finding = ClaimFinding(outcome=UNKNOWN, said=said, missing=f"valid launches of it on {claim.units}")
    ahead = [(one, it) for one in able if paper and (it := foresee(one, claim, paper))]
    if finding.outcome == UNKNOWN and ahead:
        finding = _predicted(claim, ahead) or finding
    differences = dict.fromkeys(text for one in finding.used for text in compared[id(one)].differences)
    predicted = next((count_ratio(it, claim.base, claim.count) for one, it in ahead if _of(claim, one)), None)
    return Judgement(claim=claim, finding=finding, differences=tuple(differences), predicted=predicted)


def _of(claim: Claim, one: ClaimEvidence) -> bool:
    return claim.experiment in ("", one.experiment)


def _predicted(claim: Claim, ahead: Sequence[tuple[ClaimEvidence, ClaimEvidence]]) -> ClaimFinding | None:
    """Return whether `claim` is in line with what sweeps let predict (`ahead`), by its own rule; None where open.

    A printed number is in line where any of the band lies near it.
    """
    ahead = [pair for pair in ahead if claim.against or _of(claim, pair[0])]
    found = RULES[claim.rule](claim, [it for _, it in ahead]) if ahead else None
    if found is None or (found.outcome == UNKNOWN and claim.value is None):
        return None
    used = tuple(one for one, it in ahead if any(it is each for each in found.used))
    return replace(found, outcome=NOT_IN_LINE if found.outcome == REFUTED else IN_LINE, used=used, missing="")


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
