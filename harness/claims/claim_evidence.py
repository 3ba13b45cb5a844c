"""What was measured: each sweep's evidence, whether it asks the question that a claim answers, and what it predicts.

A prediction is for the paper's own testbed: steps of launches here, made those of its cores and links.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from harness import datasets
from harness.analysis import numbers
from harness.analysis.frames import launch_frame
from harness.analysis.inference import Interval
from harness.analysis.read_results import Loaded, load_sweep
from harness.base.errors import UserError
from harness.prediction.measured_base import MeasuredBase, measured_base
from harness.prediction.network_cost import BEST, Levels, Link, Uncertain
from harness.prediction.step_model import predict_ratio
from harness.schema.claim import EXPERIMENTS, Claim, Paper
from harness.schema.option import is_own
from harness.schema.record import RunRecord
from harness.schema.sync import Gradients, NoSync, Weights, find_policy
from harness.schema.workload import IMAGE_NETWORKS, IMAGENET, Workload, image_size, is_script

GPUS = "GPUs"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreseen:
    """What is predicted of a claim's counts. `serial`: an evaluation on every rank, over an epoch's computation."""

    counts: tuple[int, ...]
    base: MeasuredBase
    network: Uncertain
    serial: float

    def ratio(self, over: int, count: int) -> Interval:
        """Return how many times as fast an epoch is on `count` ranks as on `over`, over all that is uncertain."""
        return predict_ratio(self.base, over, count, self.network, BEST, self.serial)[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimEvidence:
    """One sweep's valid launches of one kind of unit, with equal shares of the rows and as many cores for each rank.

    `launches` and `epochs` are their rows of `frames.launch_frame` and `frames.epoch_frame`, `threads` the cores of
    a rank. With `foreseen` its counts and ratios are those predicted of a claim's testbed.
    """

    loaded: Loaded
    runs: tuple[RunRecord, ...]
    launches: pd.DataFrame
    epochs: pd.DataFrame
    threads: int
    gpus: bool
    foreseen: Foreseen | None = None

    @property
    def workload(self) -> Workload:
        """What trained; under weak scaling on the fewest ranks."""
        return self.runs[0].point.workload

    @property
    def scaling(self) -> str:
        """``strong`` or ``weak``."""
        return self.runs[0].point.scaling

    @property
    def experiment(self) -> str:
        """What a claim calls it: ``mnist-dnn``, or a network's title (``ResNet-50``)."""
        workload = self.workload
        network = IMAGE_NETWORKS.get(workload.model) if workload.dataset == IMAGENET else None
        return network.title if network else workload.name

    @property
    def counts(self) -> tuple[int, ...]:
        """The rank counts that have a valid launch, or that are predicted, ascending."""
        if self.foreseen:
            return self.foreseen.counts
        return tuple(sorted({run.point.layout.ranks for run in self.runs}))

    @property
    def rows(self) -> int:
        """Training rows, all ranks together."""
        return int(self.launches["all_rows"].iloc[0])

    @property
    def all_rows(self) -> int:
        """The training rows of the whole data set."""
        return datasets.info(self.workload.dataset).train_rows

    @property
    def real(self) -> bool:
        """Whether all of it trained on the real data."""
        return all(run.data.kind == "real" for run in self.runs)

    @property
    def hosts(self) -> int:
        """The most hosts of a launch."""
        return max(len({rank.host for rank in run.ranks}) for run in self.runs)

    @property
    def parameters(self) -> int:
        """The trained weights, as a number of values."""
        return self.runs[0].weights.parameters


def gather(folders: Iterable[Path]) -> tuple[ClaimEvidence, ...]:
    """Return what the sweeps in `folders` hold, in their order; one that cannot be read is logged and left out."""
    found: list[ClaimEvidence] = []
    for folder in folders:
        try:
            loaded = load_sweep(folder)
        except UserError as error:
            _log.warning("no claim is judged by '%s': %s", folder, error)
            continue
        reasons = [*(reason for run in loaded.runs for reason in run.invalid), *loaded.damaged]
        if reasons and not loaded.valid:
            _log.warning("no claim is judged by '%s', which has no valid launch: %s", folder, reasons[0])
        found += evidence_of(loaded)
    return tuple(found)


def evidence_of(loaded: Loaded) -> tuple[ClaimEvidence, ...]:
    """Return the evidence in a sweep, on cores and on GPUs; none of a user's script or data.

    Of several numbers of threads for each rank those with the most rank counts count, then the fewest threads.
    """
    valid = [
        run
        for run in loaded.valid
        if run.point.layout.shares is None and not is_script(run.point.workload) and not run.point.workload.data_file
    ]
    found = []
    for gpus in (0, 1):
        runs = [run for run in valid if run.point.layout.gpus_per_rank == gpus]
        counts: dict[int, set[int]] = {}
        for run in runs:
            counts.setdefault(run.point.layout.threads, set()).add(run.point.layout.ranks)
        if not counts:
            continue
        threads = min(counts, key=lambda threads: (-len(counts[threads]), threads))
        chosen = tuple(run for run in runs if run.point.layout.threads == threads)
        names = {run.point.folder for run in chosen}
        epochs = loaded.epochs[loaded.epochs["run"].isin(names)]
        found.append(
            ClaimEvidence(
                loaded=loaded,
                runs=chosen,
                launches=launch_frame(chosen, epochs),
                epochs=epochs,
                threads=threads,
                gpus=bool(gpus),
            )
        )
    return tuple(found)


_OF_PAPERS = (Gradients, NoSync, Weights)
LEAST_PART = 0.1  # of the claim's rows, where ranks synchronise once per epoch: fewer is another share of exchange
LEAST_STEPS = 20  # of an epoch, where they synchronise every step: with fewer it is mostly its start and end
SAME_SIDE = 0.05  # images this much larger or smaller are still the same question (AlexNet: 224 or 227 pixels)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimMatch:
    """What a claim and a sweep do not have in common. What is `other` changes the question, so that nothing is judged.

    `few`: it trained on too few rows, from which one can predict and not judge; empty where it did not.
    """

    other: tuple[str, ...]
    differences: tuple[str, ...]
    few: str

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why no claim is judged by the sweep."""
        return (*self.other, *([self.few] if self.few else []))


def is_about(claim: Claim, found: ClaimEvidence) -> bool:
    """Tell whether the sweep is of the claim's kind of unit, and of its experiment or one that it is compared with."""
    if found.gpus != (claim.units == GPUS):
        return False
    if not claim.experiment:
        return found.workload.dataset in {one.dataset for one in EXPERIMENTS.values()}
    return found.experiment in (claim.experiment, claim.against)


def compare_with_claim(claim: Claim, found: ClaimEvidence) -> ClaimMatch:
    """Return what the sweep `found` has otherwise than `claim`."""
    rows = claim.rows or found.all_rows
    differences, few = [*_other_conditions(claim, found)], ""
    steps = int(found.launches["steps"].min())
    if claim.sync == Gradients.form and steps < LEAST_STEPS:
        few = f"its epochs have {steps} steps only, on {found.rows:,} of {rows:,} rows"
    elif claim.sync != Gradients.form and found.rows < LEAST_PART * rows:
        few = f"it trained on {found.rows:,} of {rows:,} rows, less than {numbers.percent(LEAST_PART)}"
    elif found.rows < rows:
        differences.append(f"{found.rows:,} of {rows:,} rows")
    return ClaimMatch(other=tuple(_other_question(claim, found)), differences=tuple(differences), few=few)


def _other_question(claim: Claim, found: ClaimEvidence) -> list[str]:
    workload, reasons = found.workload, []
    if is_own(workload.sync) or type(find_policy(workload.sync)) not in _OF_PAPERS:
        reasons.append(f"SYNC={workload.sync} is not an algorithm of the papers")
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


def _other_conditions(claim: Claim, found: ClaimEvidence) -> list[str]:
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
    if workload.dataset == IMAGENET:
        said.append(f"{numbers.plural(workload.batch(1), 'image')} a rank and step, the paper states none")
    if workload.precision != "float32":
        said.append(f"computed in {workload.precision}")
    if claim.rule == "progress" and workload.seconds is None:
        said.append("timed over equal rows, not trained for a fixed time")
    return said


def foresee(one: ClaimEvidence, claim: Claim, paper: Paper) -> ClaimEvidence | None:
    """Return `one` with what it lets predict of `claim` on the paper's testbed; None without launches on one rank.

    All of the claim's rows, one core or CPU a rank, in an epoch that may hold an evaluation of the test rows on every
    rank, as the group's public scripts have it, or not.
    """
    if one.counts[0] != 1 or not claim.base:
        return None
    base = measured_base(replace(one.loaded, runs=one.runs))
    low, high = paper.step
    base = replace(
        base,
        rows=claim.rows or one.all_rows,
        compute_s=base.compute_s * (low * high) ** 0.5,
        low_s=base.low_s * low,
        high_s=base.high_s * high,
    )
    near, far = (
        Levels(network=Link(alpha_s=alpha * 1e-6, beta_s_per_byte=1e-9 / rate))
        for alpha, rate in zip(paper.latency_us, reversed(paper.gigabytes_s), strict=True)
    )
    counts = {claim.base, claim.count, *([claim.at] if claim.at else [])}
    counts |= {
        claim.base * 2**power for power in range(claim.count.bit_length()) if claim.base * 2**power < claim.count
    }
    alone = one.launches[one.launches["ranks"] == 1]
    foreseen = Foreseen(
        counts=tuple(sorted(counts)),
        base=base,
        network=Uncertain(value=near, low=near, high=far),
        serial=float((alone["evaluate_s"] / alone["trained_s"]).median()),
    )
    return replace(one, foreseen=foreseen)
