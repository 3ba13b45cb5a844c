"""Paper A's seven experiments, cut so that all of them run in minutes, and how they are planned here."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from harness import datasets
from harness.schema.claim import Claim
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload
from harness.sweep.plan import build_sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One experiment: its workload's parts and the most rows and the epochs it trains by default."""

    dataset: str
    model: str
    samples: int
    epochs: int

    @property
    def name(self) -> str:
        """The workload's name, ``mnist-dnn``."""
        return f"{self.dataset}-{self.model}"


# On 2 cores three launches at 1 and 2 ranks of each take 10 to 15 minutes together. The CNNs cost a hundred
# times a DNN's row, so they train on a part of their rows.
EXPERIMENTS = (
    Experiment(dataset="mnist", model="dnn", samples=60_000, epochs=5),
    Experiment(dataset="mnist", model="cnn", samples=4_096, epochs=3),
    Experiment(dataset="adult", model="dnn", samples=32_561, epochs=5),
    Experiment(dataset="acoustic", model="dnn", samples=78_823, epochs=5),
    Experiment(dataset="cifar10", model="dnn", samples=50_000, epochs=5),
    Experiment(dataset="cifar10", model="cnn", samples=3_072, epochs=3),
    Experiment(dataset="higgs", model="dnn", samples=200_000, epochs=5),
)


def rank_counts(cores: int, claims: Iterable[Claim]) -> tuple[int, ...]:
    """Return the rank counts to run: 1, doublings, all `cores`, and the counts of the claims that fit."""
    counts = {1, cores}
    counts |= {2**power for power in range(cores.bit_length()) if 2**power <= cores}
    counts |= {units for claim in claims for units in (claim.base, claim.count) if 1 <= units <= cores}
    return tuple(sorted(counts))


def plan(
    experiment: Experiment,
    *,
    nodes: tuple[int, ...],
    preset: str,
    repeats: int,
    epochs: int | None,
    samples: int | None,
    data_dir: Path | None,
) -> Sweep:
    """Return the sweep of `experiment`; `epochs` and `samples` replace its own limits.

    Real data smaller than the limit is used whole; preparing it tells how many rows it has.

    Raises:
        UserError: a setting is out of range or the data is wrong.
    """
    workload = resolve(
        dataset=experiment.dataset,
        model=experiment.model,
        preset=preset,
        epochs=epochs or experiment.epochs,
        samples=samples or experiment.samples,
    )
    workload = _fitted(workload, data_dir)
    return build_sweep(workload, nodes=nodes, repeats=repeats, data_dir=data_dir)


def _fitted(workload: Workload, data_dir: Path | None) -> Workload:
    """Return `workload` with no more samples than its real data has rows. A twin has as many as are asked for."""
    source = datasets.locate(workload, data_dir)
    if source.kind == "synthetic":
        return workload
    available = datasets.prepare(source).record.train_rows
    return workload if workload.samples is None else replace(workload, samples=min(workload.samples, available))
