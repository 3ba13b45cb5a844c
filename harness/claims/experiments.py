"""How paper A's experiments are planned here, with its own algorithm and what came after, and how long they take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from harness import datasets
from harness.analysis.rounds import FEWEST_BLOCKS
from harness.base.errors import UserError
from harness.schema.claim import Claim, Experiment
from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload
from harness.sweep.plan import build_sweep

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


_FULL_REPEATS = 6  # the fewest that have a 95 % interval


def plan(
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
    several = tuple(layout for layout in layouts if layout.ranks > 1)
    return tuple(
        build_sweep(
            replace(workload, sync=policy),
            layouts=tuple(layouts) if policy == POLICIES[0] else several,
            repeats=size.repeats or (_FULL_REPEATS if full else FEWEST_BLOCKS),
            data_dir=data_dir,
            oversubscribe=oversubscribe,
        )
        for policy in POLICIES
        if several or policy == POLICIES[0]
    )


def sized(workload: Workload, data_dir: Path | None) -> Workload:
    """Return `workload` with its number of rows: all where it has none, and no more than its real data has."""
    source = datasets.locate(workload, data_dir)
    there = source.rows if source.kind == "synthetic" else datasets.prepare(source).record.train_rows
    return replace(workload, samples=min(workload.samples or there, there))


def quick(sweeps: Sequence[Sweep]) -> tuple[Sweep, ...]:
    """Return the launches of `sweeps` that tell what more would take: the first on the fewest and the most ranks."""
    return tuple(
        replace(sweep, layouts=tuple(dict.fromkeys((sweep.layouts[0], sweep.layouts[-1]))), repeats=1)
        for sweep in sweeps
    )


def choose(names: str | None, experiments: Iterable[str]) -> tuple[str, ...]:
    """Return those of the `experiments` that a user named, ``mnist-dnn,mnist-cnn``, in his order; all for None.

    Raises:
        UserError: one is none of them.
    """
    known = tuple(experiments)
    asked = tuple(dict.fromkeys(name.strip() for name in names.split(","))) if names else known
    for name in asked:
        if name not in known:
            raise UserError(f"WORKLOADS={names}: {name or 'an empty name'} is none of {', '.join(known)}")
    return asked


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickLaunch:
    """What launches on `ranks` ranks took, in seconds, medians.

    `around` training and evaluation, `row` of training (all ranks together), and `evaluation` behind each epoch.
    """

    ranks: int
    around: float
    row: float
    evaluation: float


def quick_launches(launches: pd.DataFrame) -> tuple[QuickLaunch, ...]:
    """Return what the rows of `launches` (`frames.launch_frame`) took, by ranks, their times valid or not."""
    epochs = launches["epochs"]
    costs = pd.DataFrame(
        {
            "ranks": launches["ranks"],
            "around": launches["import_s"] + launches["inside_s"] - launches["trained_s"] - launches["evaluate_s"],
            "row": launches["trained_s"] / (epochs * launches["rows"]),
            "evaluation": launches["evaluate_s"] / epochs,
        }
    )
    medians = costs.groupby("ranks").median().reset_index()
    return tuple(
        QuickLaunch(ranks=int(row["ranks"]), around=row["around"], row=row["row"], evaluation=row["evaluation"])
        for row in medians.to_dict("records")
    )


def seconds_of(sweep: Sweep, quick: Sequence[QuickLaunch]) -> float:
    """Return the seconds that all launches of `sweep` take one after the other.

    Each as on the most ranks of `quick` (at least one) that it has as well, which is too much where more ranks are
    faster still.
    """
    epochs, rows = sweep.workload.epochs, sweep.workload.samples
    assert rows is not None
    total = 0.0
    for layout in sweep.layouts:
        like = max((one for one in quick if one.ranks <= layout.ranks), key=lambda one: one.ranks, default=quick[0])
        total += like.around + epochs * (rows * like.row + like.evaluation)
    return sweep.repeats * total
