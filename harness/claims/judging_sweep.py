"""Published claims against what was measured: a judgement of each, by sweeps that ask its question or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from harness.analysis.sweep_choice import standing
from harness.claims.claim_evidence import ClaimEvidence
from harness.claims.claim_match import ClaimMatch, compare_with_claim, is_about
from harness.claims.claim_rules import RULES
from harness.claims.claim_verdict import ERRATUM, UNKNOWN, ClaimFinding, measured_on
from harness.claims.study_rules import parameter_servers_are_slower
from harness.schema.claim import Claim, Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A claim and what our launches say about it. `differences` are those of the sweeps that it rests on."""

    claim: Claim
    finding: ClaimFinding
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _JudgingSweep:
    """A sweep that is about a claim, and what it has otherwise."""

    sweep: ClaimEvidence
    match: ClaimMatch


def judge_claim(claim: Claim, evidence: Sequence[ClaimEvidence], rates: pd.DataFrame) -> Judgement:
    """Return the judgement of `claim` by the sweeps in `evidence` and by a bench (`parameter_servers_are_slower`).

    Sweeps that ask another question are left out and change nothing. Of the others those count first that have the
    claim's rank counts, then those that differ least from what the claim is about, then as `sweep_choice.RULE` says.
    """
    if claim.erratum:
        return Judgement(claim=claim, finding=ClaimFinding(outcome=ERRATUM, reason=claim.erratum))
    if claim.rule == Rule.PARAMETER_SERVERS_ARE_SLOWER:
        return Judgement(claim=claim, finding=parameter_servers_are_slower(rates))
    about = [sweep for sweep in evidence if is_about(claim, sweep)]
    candidates = [_JudgingSweep(sweep=sweep, match=compare_with_claim(claim, sweep)) for sweep in about]
    judges = _best_first(claim, [candidate for candidate in candidates if not candidate.match.refusals])
    if judges:
        finding = _lack_of_counts(claim, judges[0]) or RULES[claim.rule](claim, judges)
    else:
        reasons = dict.fromkeys(candidate.match.refusals[0] for candidate in candidates)
        reason = f"what ran asks another question: {'; '.join(reasons)}" if reasons else ""
        finding = ClaimFinding(outcome=UNKNOWN, reason=reason, missing=f"valid launches of it on {claim.units}")
    differences: dict[str, None] = {}
    for used in finding.used:
        for candidate in candidates:
            if candidate.sweep is used:
                differences |= dict.fromkeys(candidate.match.differences)
    return Judgement(claim=claim, finding=finding, differences=tuple(differences))


def _best_first(claim: Claim, candidates: Sequence[_JudgingSweep]) -> list[ClaimEvidence]:
    """Return the sweeps of `candidates` in the order in which they judge."""
    wanted = {claim.base, claim.count} if claim.base else set()

    def order(candidate: _JudgingSweep) -> tuple[int, int]:
        counts = candidate.sweep.counts
        fitting = len(wanted & set(counts)) if wanted else len(counts)
        return -fitting, len(candidate.match.differences)

    by_standing = sorted(candidates, key=lambda candidate: standing(candidate.sweep.loaded), reverse=True)
    return [candidate.sweep for candidate in sorted(by_standing, key=order)]


def _lack_of_counts(claim: Claim, best: ClaimEvidence) -> ClaimFinding | None:
    """Return the finding where no sweep has the rank counts that the claim needs, None where `best` has them."""
    missing = ""
    if claim.base:
        lacking = " and ".join(str(count) for count in (claim.base, claim.count) if count not in best.counts)
        missing = f"launches on {lacking} {claim.units}" if lacking else ""
    elif len(best.counts) == 1 and claim.rule != Rule.ACCURACY_IN_TIME:
        missing = "several rank counts"
    if not missing:
        return None
    return ClaimFinding(outcome=UNKNOWN, reason=measured_on(best), used=(best,), missing=missing)
