"""Published claims against what was measured: one judgement of each, by sweeps that ask its question or not at all.

A statement is true, false, or open (None) by its 95 % CI: a printed number holds where all of the interval lies
within `NEAR` of it, and not where none of it does. What is open is said with the one thing that is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from harness.analysis import units
from harness.analysis.confidence_intervals import FEWEST_BLOCKS, Interval
from harness.analysis.sweep_choice import standing
from harness.claims.claim_evidence import GPUS, ClaimEvidence
from harness.claims.measures import METRICS, Measured, Statement, exactly, measured_on, rate_of_parameter_servers
from harness.schema.claim import EXPERIMENTS, Claim, ClaimMetric, Relation
from harness.schema.option import is_own_code
from harness.schema.sync_policies import Gradients, NoSync, Weights, known_policy
from harness.schema.workload import IMAGENET, image_size

# Whether a sweep asks the question that a claim answers, and what it has otherwise.

_OF_PAPERS = (Gradients, NoSync, Weights)
LEAST_PART = 0.1  # of the claim's rows, where ranks synchronise once per epoch: fewer is another share of exchange
LEAST_STEPS = 20  # of an epoch, where they synchronise every step: with fewer it is mostly its start and end
SAME_SIDE = 0.05  # images this much larger or smaller are still the same question (AlexNet: 224 or 227 pixels)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimMatch:
    """What a claim and a sweep do not have in common.

    `other_question` has what changes the question, so that nothing is judged.
    `few`: it trained on too few rows to judge; empty where it did not.
    """

    other_question: tuple[str, ...]
    differences: tuple[str, ...]
    few: str

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why no claim is judged by the sweep."""
        return (*self.other_question, *([self.few] if self.few else []))


def is_about(claim: Claim, evidence: ClaimEvidence) -> bool:
    """Say whether the sweep is of the claim's kind of unit, and of its experiment or one that it is compared with."""
    if evidence.gpus != (claim.units == GPUS):
        return False
    if not claim.experiment:
        return evidence.workload.dataset in {experiment.dataset for experiment in EXPERIMENTS.values()}
    return evidence.experiment in (claim.experiment, claim.against)


def compare_with_claim(claim: Claim, evidence: ClaimEvidence) -> ClaimMatch:
    """Return what the sweep of the `evidence` has otherwise than `claim`."""
    rows = claim.rows or evidence.all_rows
    differences = _other_conditions(claim, evidence)
    few = ""
    steps = int(evidence.launches["steps"].min())
    if claim.sync == Gradients.form and steps < LEAST_STEPS:
        few = f"its epochs have {steps} steps only, on {evidence.rows:,} of {rows:,} rows"
    elif claim.sync != Gradients.form and evidence.rows < LEAST_PART * rows:
        few = f"it trained on {evidence.rows:,} of {rows:,} rows, less than {units.percent(LEAST_PART)}"
    elif evidence.rows < rows:
        differences.append(f"{evidence.rows:,} of {rows:,} rows")
    return ClaimMatch(other_question=tuple(_other_question(claim, evidence)), differences=tuple(differences), few=few)


def _other_question(claim: Claim, evidence: ClaimEvidence) -> list[str]:
    workload = evidence.workload
    reasons = []
    policy = known_policy(workload.sync)
    if policy is None or type(policy) not in _OF_PAPERS:
        reasons.append(f"--sync {workload.sync} is not an algorithm of the papers")
    elif not policy.synchronises:
        reasons.append(f"with --sync {workload.sync} the ranks do not train one model")
    if evidence.scaling != "strong":
        reasons.append("under weak scaling the rows grow with the ranks, and the claim is of equal rows")
    if is_own_code(workload.model) and claim.metric != ClaimMetric.LARGER:
        reasons.append(f"--model {workload.model} is another network")
    if claim.metric == ClaimMetric.ACCURACY and not evidence.real:
        reasons.append("it trained on synthetic rows")
    if claim.units == "cores" and evidence.threads > 1:
        reasons.append(f"each of its ranks has {evidence.threads} cores")
    if workload.dataset == IMAGENET:
        size = evidence.runs[0].data.features[0]
        usual_size = image_size(workload.model, None)
        if abs(size / usual_size - 1) > SAME_SIDE:
            reasons.append(f"its images have {size} pixels a side, the network's own are of {usual_size}")
    return reasons


def _other_conditions(claim: Claim, evidence: ClaimEvidence) -> list[str]:
    workload = evidence.workload
    differences = []
    if workload.sync != claim.sync:
        differences.append(f"--sync {workload.sync} instead of {claim.sync}")
    if not evidence.real:
        differences.append("synthetic rows instead of the real ones")
    if evidence.hosts == 1 and max(evidence.counts) > 1:
        what = "GPUs" if evidence.gpus else "cores"
        differences.append(f"all ranks on {what} of one host, with no network between them")
    if claim.units == "CPUs" and evidence.threads == 1:
        differences.append("a core stands for a CPU")
    if workload.wire != "float32":
        differences.append(f"gradients exchanged in {workload.wire}")
    if workload.dataset == IMAGENET:
        differences.append(f"{units.plural(workload.batch(1), 'image')} a rank and step, the paper states none")
    if workload.precision != "float32":
        differences.append(f"computed in {workload.precision}")
    if claim.metric == ClaimMetric.ROWS and workload.seconds is None:
        differences.append("timed over equal rows, not trained for a fixed time")
    return differences


CONFIRMED = "confirmed"
REFUTED = "refuted"
UNKNOWN = "cannot be said"
ERRATUM = "printed wrong in the paper"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimFinding:
    """An outcome, why in one sentence without its point, and the sweeps that it rests on.

    `missing` is the one thing without which it cannot be said, empty where it can.
    """

    outcome: str
    reason: str
    used: tuple[ClaimEvidence, ...] = ()
    missing: str = ""

    def __str__(self) -> str:
        lack = f"missing: {self.missing}" if self.missing else ""
        return f"{self.outcome}: {'; '.join(filter(None, (self.reason, lack)))}"


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
    """Return the judgement of `claim` by the sweeps in `evidence`, or by a bench (`rate_of_parameter_servers`).

    Sweeps that ask another question are left out and change nothing. Of the others those count first that have the
    claim's rank counts, then those that differ least from what the claim is about, then as `sweep_choice.RULE` says.
    """
    if claim.erratum:
        return Judgement(claim=claim, finding=ClaimFinding(outcome=ERRATUM, reason=claim.erratum))
    if claim.metric == ClaimMetric.SERVERS:
        return Judgement(claim=claim, finding=judge(claim, rate_of_parameter_servers(claim, rates)))
    about = [sweep for sweep in evidence if is_about(claim, sweep)]
    candidates = [_JudgingSweep(sweep=sweep, match=compare_with_claim(claim, sweep)) for sweep in about]
    judges = _best_first(claim, [candidate for candidate in candidates if not candidate.match.refusals])
    if judges:
        finding = _lack_of_counts(claim, judges[0]) or judge(claim, METRICS[claim.metric](claim, judges))
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


def judge(claim: Claim, ways: Sequence[Measured]) -> ClaimFinding:
    """Return the finding on `claim` by what was measured: one of the `ways` that confirms it is enough.

    Of ways that do not, the first one that is open speaks, else the first.
    """
    findings = [_finding(claim, measured) for measured in ways]
    for outcome in (CONFIRMED, UNKNOWN):
        for finding in findings:
            if finding.outcome == outcome:
                return finding
    return findings[0]


def _finding(claim: Claim, measured: Measured) -> ClaimFinding:
    """Return the finding of a claim that says all statements of `measured`: one that fails refutes it."""
    if measured.missing:
        return ClaimFinding(outcome=UNKNOWN, reason=measured.reason, used=measured.used, missing=measured.missing)
    parts = [part for statement in measured.statements for part in _parts(claim, statement)]
    outcome = CONFIRMED
    if False in parts:
        outcome = REFUTED
    elif None in parts or not parts:
        outcome = UNKNOWN
    missing = ""
    if outcome == UNKNOWN:
        missing = "launches enough for a narrower interval"
        if any(None in (statement.value, statement.against) for statement in measured.statements):
            missing = f"an interval, which needs {FEWEST_BLOCKS} launches of each"
    reason = measured.reason
    if claim.relation == Relation.ABOUT:
        reason += _about_words(claim, measured, parts)
    return ClaimFinding(outcome=outcome, reason=reason, used=measured.used, missing=missing)


def _parts(claim: Claim, statement: Statement) -> list[bool | None]:
    """Return whether the claim's relation holds of a statement; what is about a speedup is above 1 too."""
    if claim.relation == Relation.BELOW:
        return [_less(statement.value, statement.against)]
    if claim.relation == Relation.ABOVE or claim.value is None:
        return [_less(statement.against, statement.value)]
    return [_less(exactly(1), statement.value), _within(statement.value, statement.against)]


def _about_words(claim: Claim, measured: Measured, parts: Sequence[bool | None]) -> str:
    """Return how a printed number and the measured one differ, and from where to where it holds."""
    words = ""
    if parts[0] is False:
        words = ", slower than on the base"
    elif parts[-1] is False and claim.value is not None:
        words = f", {'less' if measured.point < claim.value else 'more'} than claimed"
    limits = measured.statements[0].against
    if claim.value is not None and limits is not None:
        words += f"; the claim holds from {limits.low:.2f} to {limits.high:.2f}"
    return words


def _less(lower: Interval | None, upper: Interval | None) -> bool | None:
    """Say whether `lower` lies below `upper`, or above it; None where they overlap or one is missing."""
    if lower is None or upper is None or (lower.low <= upper.high and upper.low <= lower.high):
        return None
    return lower.high < upper.low


def _within(interval: Interval | None, limits: Interval | None) -> bool | None:
    """Say whether all of `interval` lies within `limits`, or none of it; None where a part does or it is missing."""
    if interval is None or limits is None:
        return None
    if interval.high < limits.low or interval.low > limits.high:
        return False
    return True if limits.low <= interval.low and interval.high <= limits.high else None


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
    elif len(best.counts) == 1 and claim.metric != ClaimMetric.ACCURACY:
        missing = "several rank counts"
    if not missing:
        return None
    return ClaimFinding(outcome=UNKNOWN, reason=measured_on(best), used=(best,), missing=missing)
