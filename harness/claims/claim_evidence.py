"""What was measured: the launches of each sweep that a claim may be judged by."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from harness import datasets
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.base.errors import UserError
from harness.schema.record import RunRecord
from harness.schema.workload import IMAGE_NETWORKS, IMAGENET, Workload

GPUS = "GPUs"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimEvidence:
    """One sweep's valid launches of one kind of unit, with as many cores for each rank.

    `launches` and `epochs` are their rows of `launch_frame` and `epoch_frame`, `threads` the cores of
    a rank.
    """

    loaded: Loaded
    runs: tuple[RunRecord, ...]
    launches: pd.DataFrame
    epochs: pd.DataFrame
    threads: int
    gpus: bool

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
        """The rank counts that have a valid launch, ascending."""
        return tuple(sorted({run.point.layout.ranks for run in self.runs}))

    @property
    def rows(self) -> int:
        """Training rows, all ranks together."""
        return int(self.launches["all_rows"].iloc[0])

    @property
    def all_rows(self) -> int:
        """The training rows of the whole data set."""
        return datasets.dataset_info(self.workload.dataset).train_rows

    @property
    def real(self) -> bool:
        """Whether all of it trained on the real data."""
        return all(run.data.kind == "real" for run in self.runs)

    @property
    def hosts(self) -> int:
        """The most hosts of a launch."""
        return max(run.hosts for run in self.runs)

    @property
    def parameters(self) -> int:
        """The trained weights, as a number of values."""
        return self.runs[0].weights.parameters


def gather(folders: Iterable[Path]) -> tuple[ClaimEvidence, ...]:
    """Return what the sweeps in `folders` hold, in their order; one that cannot be read is logged and left out."""
    evidence: list[ClaimEvidence] = []
    for folder in folders:
        try:
            loaded = load_sweep(folder)
        except UserError as error:
            _log.warning("no claim is judged by '%s': %s", folder, error)
            continue
        reasons = [*(reason for run in loaded.runs for reason in run.invalid), *loaded.damaged]
        if reasons and not loaded.valid:
            _log.warning("no claim is judged by '%s', which has no valid launch: %s", folder, reasons[0])
        evidence += evidence_of(loaded)
    return tuple(evidence)


def evidence_of(loaded: Loaded) -> tuple[ClaimEvidence, ...]:
    """Return the evidence in a sweep, on cores and on GPUs; none of a user's script or data.

    Of several numbers of threads for each rank those with the most rank counts count, then the fewest threads.
    """
    valid = [run for run in loaded.valid if run.point.workload.has_known_data]
    evidence = []
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
        evidence.append(
            ClaimEvidence(
                loaded=loaded,
                runs=chosen,
                launches=launch_frame(chosen, epochs),
                epochs=epochs,
                threads=threads,
                gpus=bool(gpus),
            )
        )
    return tuple(evidence)
