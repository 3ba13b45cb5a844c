"""Paper A's experiments: what is run of them here, by the paper's own algorithm and by what came after.

Each experiment is trained in turns, all of its sweeps in one block a repeat.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import datasets
from harness.analysis.confidence_intervals import FEWEST_BLOCKS, FEWEST_LAUNCHES
from harness.schema.claim import Claim, Experiment
from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload

PRESET = "paper-2016-03"
POLICIES = ("weights:epoch", "weights:10", "gradients")
"""What is run on the same rows: the paper's averaging once per epoch, averaging every K steps (the K is ours), and
paper B's gradients every step."""


def rank_counts(cores: int, claims: Iterable[Claim]) -> tuple[int, ...]:
    """Return the rank counts to run: 1, doublings, all `cores`, and the counts of the claims that fit."""
    counts = {1, cores}
    counts |= {2**power for power in range(cores.bit_length()) if 2**power <= cores}
    counts |= {units for claim in claims for units in (claim.base, claim.count) if 1 <= units <= cores}
    return tuple(sorted(counts))


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentSize:
    """How much of an experiment is run; `repeats` are launches of each layout.

    What is None is cut to the experiment's own limits and the fewest blocks that have an interval; with `full` it is
    all rows, the preset's epochs and six launches.
    """

    full: bool = False
    repeats: int | None = None
    epochs: int | None = None
    samples: int | None = None


def plan_experiments(
    experiment: Experiment,
    *,
    layouts: Sequence[Layout],
    preset: str,
    size: ExperimentSize,
    data_dir: Path | None,
    oversubscribe: bool = False,
) -> tuple[Sweep, ...]:
    """Return the sweeps of `experiment`: one for each of POLICIES that have a layout to differ in.

    They differ in nothing but the policy. A single rank has nothing to synchronise: the first sweep has it for all.
    Real data smaller than a limit is used whole; preparing it tells how many rows it has.

    Raises:
        UserError: a setting is out of range or the data is wrong.
    """
    full = size.full
    workload = resolve(
        dataset=experiment.dataset,
        model=experiment.model,
        preset=preset,
        epochs=size.epochs or (None if full else experiment.epochs),
        samples=size.samples or (None if full else experiment.rows),
    )
    workload = sized(workload, data_dir)
    data_id = datasets.locate(workload, data_dir).data_id
    several = tuple(layout for layout in layouts if layout.ranks > 1)
    return tuple(
        Sweep(
            workload=replace(workload, sync=policy),
            layouts=tuple(layouts) if policy == POLICIES[0] else several,
            repeats=size.repeats or (FEWEST_LAUNCHES if full else FEWEST_BLOCKS),
            data_id=data_id,
            oversubscribe=oversubscribe,
        )
        for policy in POLICIES
        if several or policy == POLICIES[0]
    )


def sized(workload: Workload, data_dir: Path | None) -> Workload:
    """Return `workload` with its number of rows: all where it has none, and no more than its real data has."""
    source = datasets.locate(workload, data_dir)
    rows = source.rows if source.kind == "synthetic" else datasets.prepare(source).record.train_rows
    return replace(workload, samples=min(workload.samples or rows, rows))
