"""The record of a bench (``bench.json``), and its tables: ratios formed within rounds, whose sample is the block."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pandas as pd

from harness.analysis.confidence_intervals import BlockRatio, Interval, ratio_over_blocks
from harness.analysis.turn_blocks import winsorise
from harness.base.provenance import Machine
from harness.bench.contenders import BARE, BATCH_PER_RANK, BOUND, CONTENDERS, OURS
from harness.schema.record import decode

RECORD = "bench.json"  # reports/bench/bench.json
SCHEMA = 2
GOALS = {
    ("ours-1", "bare-1"): 1 / 1.03,
    ("none", "bare"): 1 / 1.03,
    ("weights-epoch", "bare"): 1 / 1.03,
    ("gradients", "bound"): 1.0,
}
"""The least ratio of samples per second, of a contender over another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchBlock:
    """One block of a workload: its contenders were started together and trained in turns.

    `steps` are the seconds of a step in every round, by contender, of the slowest rank; None where its turn was
    disturbed or there was none. `losses` are the mean training losses of the
    first epoch of those that came to its end. `failed` says why a contender has no rounds; `details` are facts for the
    page.
    """

    workload: str
    number: int
    started: datetime
    wall_s: float
    steps: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUp:
    """Seconds of a small script on two ranks from the command to its end, by pairs of starts in turns.

    `plain_s` are by mpirun alone, where each rank trains all, `run_s` by `harness run`.
    """

    plain_s: tuple[float, ...]
    run_s: tuple[float, ...]

    @property
    def ratio(self) -> BlockRatio | None:
        """How many times as long `harness run` takes, over the pairs; None for fewer than 3."""
        pairs = zip(self.run_s, self.plain_s, strict=True)
        return ratio_over_blocks([math.log(run_s / plain_s) for run_s, plain_s in pairs])


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstInterval:
    """A sweep of one and two ranks: the `seconds` from the command to its page of three blocks.

    `reach` is half the width of its speedup's interval, of the logarithm.
    """

    seconds: float
    reach: float

    @property
    def reach_after_a_minute(self) -> float:
        """What the reach would be after one minute if it fell with the root of the time, the start included."""
        return self.reach * math.sqrt(self.seconds / 60)


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """What a user waits for beside training; None is what was not measured, `failed` says why."""

    start_up: StartUp | None = None
    first_interval: FirstInterval | None = None
    failed: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRecord:
    """A whole bench: where, with what, and every block in the order they were made.

    `rows` are those of an epoch by workload. `left_out` says why contenders take no part. `forced` measured on a busy
    machine too: no verdict is based on it. `waiting` is empty where contenders were chosen.
    """

    schema: int
    started: datetime
    machine: Machine
    versions: dict[str, str]
    commit: str
    dirty: bool
    rows: dict[str, int]
    contenders: tuple[str, ...]
    left_out: dict[str, str]
    forced: bool
    blocks: tuple[BenchBlock, ...] = ()
    waiting: Waiting = field(default_factory=Waiting)


def read_bench(path: Path) -> BenchRecord:
    """Read the record of a bench.

    Raises:
        UserError: it is damaged, or of launches one after the other, as they were made before there were turns.
    """
    return decode(path.read_bytes(), BenchRecord, path)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContenderRatio:
    """How many times as many rows a second `top` trains as `bottom`; `interval` (95 %) is None for fewer than 3 blocks.

    `met` tells whether the goal, if there is one, is reached by the whole interval (True), by none of it (False).
    """

    top: str
    bottom: str
    ratio: float
    interval: Interval | None
    blocks: int
    met: bool | None = None

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.ratio:.3f}"
        return f"{self.ratio:.3f} ({self.interval.low:.3f} to {self.interval.high:.3f})"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadRow:
    """One workload: `rates` are rows a second and `losses` those of the first epoch by contender.

    `ratios` by contender: over the bare loop of as many ranks, over the bound, and over the harness itself
    (`references`), as far as both were measured.
    """

    workload: str
    rates: dict[str, float]
    losses: dict[str, float]
    ratios: dict[str, dict[str, ContenderRatio]]
    failed: dict[str, str]


def references(contender: str) -> dict[str, str]:
    """Return what `contender` is compared with, by the table in which it is: ``bare``, ``bound``, ``harness``."""
    ranks = CONTENDERS[contender].ranks
    by_table = {"bare": BARE[ranks], "harness": OURS[ranks]}
    if ranks > 1:
        by_table["bound"] = BOUND
    return {table: reference for table, reference in by_table.items() if reference != contender}


def tabulate(record: BenchRecord) -> tuple[WorkloadRow, ...]:
    """Return one row for every workload that has a block, in the record's order."""
    rows = []
    for workload in record.rows:
        blocks = [block for block in record.blocks if block.workload == workload]
        if blocks:
            rates = {name: rate for name in record.contenders if (rate := _rate(name, blocks))}
            ratios: dict[str, dict[str, ContenderRatio]] = {}
            for name in rates:
                ratios[name] = {}
                for table, reference in references(name).items():
                    ratio = contender_ratio(blocks, name, reference, judged=not record.forced)
                    if ratio is not None:
                        ratios[name][table] = ratio
            losses = {name: loss for name in record.contenders if (loss := _mean_loss(name, blocks)) is not None}
            row = WorkloadRow(
                workload=blocks[0].workload,
                rates=rates,
                losses=losses,
                ratios=ratios,
                failed={name: why for block in blocks for name, why in block.failed.items()},
            )
            rows.append(row)
    return tuple(rows)


def _mean_loss(name: str, blocks: Sequence[BenchBlock]) -> float | None:
    losses = [block.losses[name] for block in blocks if name in block.losses]
    return fmean(losses) if losses else None


def contender_ratio(
    blocks: Sequence[BenchBlock], top: str, bottom: str, *, judged: bool = True
) -> ContenderRatio | None:
    """Return the ratio of the samples per second of two contenders, over the blocks in which both have rounds."""
    values = block_ratios(blocks, top, bottom)
    if not values:
        return None
    over_blocks = ratio_over_blocks(values)
    interval = over_blocks.interval if over_blocks else None
    goal = GOALS.get((top, bottom)) if judged else None
    return ContenderRatio(
        top=top,
        bottom=bottom,
        ratio=math.exp(fmean(values)),
        interval=interval,
        blocks=len(values),
        met=_is_met(goal, interval),
    )


def _is_met(goal: float | None, interval: Interval | None) -> bool | None:
    """Return whether the whole `interval` reaches the `goal`, None where it cannot be told or there is none."""
    if goal is None or interval is None:
        return None
    if interval.low >= goal:
        return True
    return False if interval.high < goal else None


def block_ratios(blocks: Sequence[BenchBlock], top: str, bottom: str) -> list[float]:
    """Return the log ratio of samples per second, Winsor's mean, of every block with rounds of both contenders."""
    work = math.log(CONTENDERS[top].ranks / CONTENDERS[bottom].ranks)
    frames = [pd.DataFrame(block.steps, dtype=float) for block in blocks]
    both = [frame.reindex(columns=[bottom, top]).dropna() for frame in frames]
    logs = [np.log(frame[bottom].to_numpy() / frame[top].to_numpy()) for frame in both]
    return [float(winsorise(ratios).mean()) + work for ratios in logs if len(ratios)]


def paired_rates(record: BenchRecord, **contenders: str) -> list[dict[str, str | float]]:
    """Return a row for every block in which two `contenders` trained: samples per second by the keyword's name.

    None of a forced bench: no verdict is based on it.
    """
    if record.forced:
        return []
    rows: list[dict[str, str | float]] = []
    (first, top), (second, bottom) = contenders.items()
    for block in record.blocks:
        rate = _rate(bottom, [block])
        for ratio in block_ratios([block], top, bottom) if rate else []:
            rows.append({"workload": block.workload, first: rate * math.exp(ratio), second: rate})
    return rows


def _rate(name: str, blocks: Sequence[BenchBlock]) -> float:
    """Return the samples per second over all ranks: the median of the blocks' medians, 0 without any."""
    medians = []
    for block in blocks:
        steps = [step for step in block.steps.get(name, ()) if step is not None]
        if steps:
            medians.append(median(steps))
    return BATCH_PER_RANK * CONTENDERS[name].ranks / median(medians) if medians else 0.0
