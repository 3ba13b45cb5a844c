"""Whether a sweep asks the question that a claim answers, and what it has otherwise."""

from dataclasses import dataclass

from harness.analysis import units
from harness.claims.claim_evidence import GPUS, ClaimEvidence
from harness.schema.claim import EXPERIMENTS, Claim, ClaimMetric
from harness.schema.option import is_own_code
from harness.schema.sync_policies import Gradients, NoSync, Weights, known_policy
from harness.schema.workload import IMAGENET, image_size

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
        reasons.append(f"SYNC={workload.sync} is not an algorithm of the papers")
    elif not policy.synchronises:
        reasons.append(f"with SYNC={workload.sync} the ranks do not train one model")
    if evidence.scaling != "strong":
        reasons.append("under weak scaling the rows grow with the ranks, and the claim is of equal rows")
    if is_own_code(workload.model) and claim.metric != ClaimMetric.LARGER:
        reasons.append(f"MODEL={workload.model} is another network")
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
        differences.append(f"SYNC={workload.sync} instead of {claim.sync}")
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
