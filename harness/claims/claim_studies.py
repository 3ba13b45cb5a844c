"""What can judge the claims on a machine, in the order in which it is worth running, and how long that takes.

Sizes are the least from which the claim's metric has an interval, which claims do not name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from harness import datasets
from harness.analysis.confidence_intervals import FEWEST_BLOCKS, FEWEST_LAUNCHES
from harness.claims.claim_evidence import GPUS, ClaimEvidence
from harness.claims.judgement import CONFIRMED, REFUTED, Judgement
from harness.claims.paper_experiments import PRESET
from harness.schema.claim import EXPERIMENTS, Claim, ClaimMetric
from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.record import RunRecord
from harness.schema.sweep import Sweep
from harness.schema.workload import IMAGE_NETWORKS, IMAGENET, Workload

WIDE = "harness.models.networks:wide"
BENCHED = ("mnist-dnn", "adult-dnn")  # what parameter servers are judged on
# Rows per rank and step, of which the papers state none and larger ones would take hours; and steps on the most ranks,
# so that an epoch is long enough for turns.
_BLOCKS = 4
_SIZES = {"alexnet": (16, 28), "googlenet": (2, 80), "inceptionv3": (1, 28), "resnet50": (2, 28)}
# About how long a study takes on 2 cores, estimated from steps and starts; what ran is told by its records.
_MINUTES = {
    "mnist-dnn": 9.0,
    "adult-dnn": 1.5,
    "parameter servers": 2.0,
    "alexnet": 11.0,
    "googlenet": 6.5,
    "inceptionv3": 6.5,
    "resnet50": 7.0,
    "accuracy": 7.5,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimStudy:
    """What judges some claims: `sweeps` in turns, none for a bench.

    `claims` are those that it judges; `minutes` about what it costs on 2 cores, 0 where that is not known. What it
    `lacks` here keeps it from judging, empty for nothing.
    """

    title: str
    claims: tuple[Claim, ...]
    sweeps: tuple[Sweep, ...] = ()
    minutes: float = 0.0
    lacks: str = ""

    def left(self, judgements: Iterable[Judgement]) -> int:
        """Return how many of its claims are not decided yet."""
        decided = [judgement.claim for judgement in judgements if judgement.finding.outcome in (CONFIRMED, REFUTED)]
        return sum(claim not in decided for claim in self.claims)

    def took(self, evidence: Iterable[ClaimEvidence]) -> float:
        """Return the minutes that its blocks took, 0 where none ran."""
        names = {sweep.name for sweep in self.sweeps}
        runs_of_block: dict[str, list[RunRecord]] = {}
        for sweep in evidence:
            if sweep.loaded.folder.name in names:
                for run in sweep.runs:
                    runs_of_block.setdefault(run.block or run.point.folder, []).append(run)
        return sum(map(_block_seconds, runs_of_block.values())) / 60


def _block_seconds(runs: Sequence[RunRecord]) -> float:
    """Return the seconds from the begin of the first of `runs` to the end of the last."""
    begin = min(run.ended - timedelta(seconds=run.wall_seconds) for run in runs)
    return (max(run.ended for run in runs) - begin).total_seconds()


class StudyPlanner:
    """Makes the studies of `claims` for a machine of `cores` cores, on the data in `data_dir`."""

    def __init__(self, claims: Sequence[Claim], cores: int, data_dir: Path | None) -> None:
        self._claims = claims
        self._cores = cores
        self._data_dir = data_dir
        self._by_metric = {claim.metric: claim for claim in claims if not claim.base}
        self._lacks_core = "a second core" if cores < 2 else ""

    def studies(self) -> tuple[ClaimStudy, ...]:
        """Return what can judge the claims here, in the order in which it is worth running.

        Raises:
            UserError: the data is wrong.
        """
        return (*self._sentences(), *self._image_networks(), *self._curves(), self._accuracy())

    def _sentences(self) -> tuple[ClaimStudy, ...]:
        """Return the studies of what the papers say in words."""
        workload = resolve(dataset="mnist", model="dnn", preset=PRESET, epochs=4)
        averaged = resolve(dataset="adult", model="dnn", preset=PRESET, epochs=3, global_batch=20)
        metrics = [
            ClaimMetric.START,
            ClaimMetric.READING,
            ClaimMetric.LARGER,
        ]
        counts = [1, 2]
        if self._cores >= 4:
            metrics.append(ClaimMetric.EXCHANGE)
            counts.append(4)
        # The wider network has twice the blocks: it is slower on near cores than on far ones.
        wide = self._sweep(replace(workload, model=WIDE, epochs=1), (1, 2), 2 * FEWEST_LAUNCHES)
        return (
            ClaimStudy(
                title="mnist-dnn",
                claims=tuple(self._by_metric[metric] for metric in metrics),
                minutes=_MINUTES["mnist-dnn"],
                lacks=self._lacks_core,
                sweeps=(
                    self._sweep(workload, counts),
                    self._sweep(replace(workload, distribution="parallel"), (2,)),
                    wide,
                ),
            ),
            ClaimStudy(
                title="adult-dnn",
                claims=(self._by_metric[ClaimMetric.LOSS],),
                minutes=_MINUTES["adult-dnn"],
                lacks=self._lacks_core,
                sweeps=(self._sweep(averaged, (1, 2)),),
            ),
            ClaimStudy(
                title="parameter servers",
                claims=(self._by_metric[ClaimMetric.SERVERS],),
                minutes=_MINUTES["parameter servers"],
                lacks=self._lacks_core,
            ),
        )

    def _image_networks(self) -> tuple[ClaimStudy, ...]:
        """Return the studies of paper B's networks whose claims fit on the cores."""
        network_studies = []
        for model, (batch, steps) in _SIZES.items():
            of_network = [claim for claim in self._claims if claim.experiment == IMAGE_NETWORKS[model].title]
            claims = tuple(claim for claim in of_network if self._fits(claim))
            if claims:
                counts = {claim.base for claim in claims} | {claim.count for claim in claims}
                rows = steps * batch * max(counts)
                images = resolve(dataset=IMAGENET, model=model, batch_per_rank=batch, samples=rows, epochs=1)
                sweeps = (self._sweep(images, counts, _BLOCKS),)
                minutes = _MINUTES[model] if max(counts) == 2 else 0.0
                network_studies.append(ClaimStudy(title=model, claims=claims, sweeps=sweeps, minutes=minutes))
        return tuple(network_studies)

    def _curves(self) -> tuple[ClaimStudy, ...]:
        """Return a study of each curve of paper A that fits on the cores."""
        curve_studies = []
        for claim in self._claims:
            if claim.experiment not in EXPERIMENTS or not self._fits(claim):
                continue
            powers = {claim.base * 2**power for power in range(claim.count.bit_length())}
            counts = {claim.base, claim.count, claim.at or 1, *(step for step in powers if step < claim.count)}
            sweeps = []
            for name in filter(None, (claim.experiment, claim.against)):
                experiment = EXPERIMENTS[name]
                workload = resolve(
                    dataset=experiment.dataset, model=experiment.model, preset=PRESET, epochs=experiment.epochs
                )
                sweeps.append(self._sweep(workload, counts, FEWEST_BLOCKS))
            curve_studies.append(ClaimStudy(title=claim.experiment, claims=(claim,), sweeps=tuple(sweeps)))
        return tuple(curve_studies)

    def _accuracy(self) -> ClaimStudy:
        """Return the study of the accuracy that is reached in a time, on the real rows."""
        workload = resolve(dataset="cifar10", model="dnn", epochs=60)
        is_real = datasets.locate(workload, self._data_dir).kind == "real"
        return ClaimStudy(
            title="accuracy",
            claims=(self._by_metric[ClaimMetric.ACCURACY],),
            minutes=_MINUTES["accuracy"],
            lacks="" if is_real else "the real rows (--data-dir FOLDER)",
            sweeps=(self._sweep(workload, (min(2, self._cores),)),),
        )

    def _sweep(self, workload: Workload, counts: Iterable[int], repeats: int = FEWEST_LAUNCHES) -> Sweep:
        layouts = tuple(Layout(nodes=count) for count in sorted(set(counts)) if count <= self._cores)
        data_id = datasets.locate(workload, self._data_dir).data_id
        return Sweep(workload=workload, layouts=layouts, repeats=repeats, data_id=data_id)

    def _fits(self, claim: Claim) -> bool:
        is_possible = 0 < claim.base < claim.count <= self._cores
        return is_possible and claim.units != GPUS and not claim.erratum
