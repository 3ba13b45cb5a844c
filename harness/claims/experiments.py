"""How paper A's seven experiments are planned here."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from harness import datasets
from harness.schema.claim import Claim, Experiment
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload
from harness.sweep.plan import build_sweep


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
        samples=samples or experiment.rows,
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
