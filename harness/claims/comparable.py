"""Whether a sweep asks the question that a claim answers: what differs, and what differs too much."""

from dataclasses import dataclass

from harness.analysis import numbers
from harness.base.own_code import is_own
from harness.claims.evidence import GPUS, Evidence
from harness.schema.claim import EXPERIMENTS, Claim
from harness.schema.sync import Gradients, find_policy
from harness.schema.workload import IMAGENET, image_size

LEAST_PART = 0.1  # of the claim's rows, where ranks synchronise once per epoch: fewer is another share of exchange
LEAST_STEPS = 20  # of an epoch, where they synchronise every step: with fewer it is mostly its start and end
SAME_SIDE = 0.05  # images this much larger or smaller are still the same question (AlexNet: 224 or 227 pixels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What a claim and a sweep do not have in common. `refusals` change the question, so that nothing is judged."""

    refusals: tuple[str, ...]
    differences: tuple[str, ...]


def is_about(claim: Claim, found: Evidence) -> bool:
    """Tell whether the sweep is of the claim's kind of unit, and of its experiment or one that it is compared with."""
    if found.gpus != (claim.units == GPUS):
        return False
    if not claim.experiment:
        return found.workload.dataset in {one.dataset for one in EXPERIMENTS.values()}
    return found.experiment in (claim.experiment, claim.against)


def compare(claim: Claim, found: Evidence) -> Comparison:
    """Return what the sweep `found` has otherwise than `claim`."""
    rows = claim.rows or found.all_rows
    refusals, differences = [*_other_question(claim, found)], [*_other_conditions(claim, found)]
    steps = int(found.launches["steps"].min())
    if claim.sync == Gradients.form and steps < LEAST_STEPS:
        refusals.append(f"its epochs have {steps} steps only, on {found.rows:,} of {rows:,} rows")
    elif claim.sync != Gradients.form and found.rows < LEAST_PART * rows:
        refusals.append(f"it trained on {found.rows:,} of {rows:,} rows, less than {numbers.percent(LEAST_PART)}")
    elif found.rows < rows:
        differences.append(f"{found.rows:,} of {rows:,} rows")
    return Comparison(refusals=tuple(refusals), differences=tuple(differences))


def _other_question(claim: Claim, found: Evidence) -> list[str]:
    workload, reasons = found.workload, []
    if is_own(workload.sync):
        reasons.append(f"SYNC={workload.sync} is no algorithm of the papers")
    elif not find_policy(workload.sync).synchronises:
        reasons.append(f"with SYNC={workload.sync} the ranks do not train one model")
    if found.scaling != "strong":
        reasons.append("under weak scaling the rows grow with the ranks, and the claim is of equal rows")
    if is_own(workload.model) and claim.rule != "wider":
        reasons.append(f"MODEL={workload.model} is another network")
    if claim.rule == "accuracy" and not found.real:
        reasons.append("it trained on synthetic rows")
    if claim.units == "cores" and found.threads > 1:
        reasons.append(f"each of its ranks has {found.threads} cores")
    if workload.dataset == IMAGENET:
        size, own = found.runs[0].data.features[0], image_size(workload.model, None)
        if abs(size / own - 1) > SAME_SIDE:
            reasons.append(f"its images have {size} pixels a side, the network's own are of {own}")
    return reasons


def _other_conditions(claim: Claim, found: Evidence) -> list[str]:
    workload, said = found.workload, []
    if workload.sync != claim.sync:
        said.append(f"SYNC={workload.sync} instead of {claim.sync}")
    if not found.real:
        said.append("synthetic rows instead of the real ones")
    if found.hosts == 1 and max(found.counts) > 1:
        what = "GPUs" if found.gpus else "cores"
        said.append(f"all ranks on {what} of one host, with no network between them")
    if claim.units == "CPUs" and found.threads == 1:
        said.append("a core stands for a CPU")
    if workload.wire != "float32":
        said.append(f"gradients exchanged in {workload.wire}")
    if workload.precision != "float32":
        said.append(f"computed in {workload.precision}")
    if claim.rule == "progress" and workload.seconds is None:
        said.append("timed over equal rows, not trained for a fixed time")
    return said
