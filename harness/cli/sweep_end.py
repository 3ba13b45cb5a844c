"""When a sweep ends that is asked for no number of repeats: by the width of its intervals, or by its time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import monotonic

from harness.analysis.block_plan import BlockSpread, EndRule, best_seconds, block_samples, spread_of
from harness.analysis.confidence_intervals import FEWEST_BLOCKS, expected_reach
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import PointScaling, scale
from harness.analysis.units import plural
from harness.cli.terminal import echo
from harness.schema.record import RunRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredWidth:
    """Half the width of a sweep's widest interval (`reach`, of the logarithm; infinite where there is none).

    It is of so many `repeats`, each of which took `repeat_s` seconds; `rounds_s` of these were rounds of turns.
    `spread` has the variances of that speedup, None where they are not known.
    """

    reach: float
    repeats: int
    repeat_s: float = 0.0
    rounds_s: float = 0.0
    spread: BlockSpread | None = None


def measure_width(folder: Path) -> MeasuredWidth:
    """Read the sweep in `folder`, and return how well its speedups are known."""
    loaded = load_sweep(folder)
    launches = launch_frame(loaded.runs, loaded.epochs)
    repeats = int(launches["repeat"].max()) + 1
    repeat_s = _repeat_seconds(loaded.runs)
    scaling = scale(launches)
    in_blocks = [point for point in scaling.others if point.blocks] if scaling else []
    if not in_blocks:
        return MeasuredWidth(reach=0.0, repeats=repeats, repeat_s=repeat_s)
    widest = max(in_blocks, key=_reach)
    samples = block_samples(launches, widest.layout)
    return MeasuredWidth(
        reach=_reach(widest),
        repeats=repeats,
        repeat_s=repeat_s,
        rounds_s=fmean(sample.seconds for sample in samples) if samples else 0.0,
        spread=spread_of(samples),
    )


def _reach(point: PointScaling) -> float:
    interval = point.speedup_interval
    return math.log(interval.high / interval.low) / 2 if interval else math.inf


def _repeat_seconds(runs: Sequence[RunRecord]) -> float:
    """Return the mean seconds of a repeat: of each of its blocks, those of the launch that took longest."""
    longest: dict[tuple[int, str], float] = {}
    for run in runs:
        block = (run.point.repeat, run.block or run.point.folder)
        longest[block] = max(longest.get(block, 0.0), run.wall_seconds)
    repeats = {repeat for repeat, _ in longest}
    return sum(longest.values()) / len(repeats)


class SweepEnd:
    """What `run_sweep` asks after each part of a sweep: how many repeats there shall be, and how long the next train.

    How long is chosen only `with_lengths`; else blocks train the epochs that are asked for.
    """

    def __init__(self, rule: EndRule, *, with_lengths: bool) -> None:
        self._rule = rule
        self._with_lengths = with_lengths
        self._begun = monotonic()
        self._block_s = 0.0

    def block_seconds(self) -> float:
        """Return the seconds of rounds that the next blocks are given, 0 for those of the epochs asked for."""
        return self._block_s

    def wanted_repeats(self, folder: Path) -> int:
        """Return how many repeats the sweep in `folder` shall have, and say why: the same number where it ends."""
        width = measure_width(folder)
        seconds = monotonic() - self._begun
        repeat_s = width.repeat_s
        if self._with_lengths and width.spread is not None:
            start_s = max(0.0, repeat_s - width.rounds_s)
            self._block_s = best_seconds(
                width.spread,
                start_s=start_s,
                left_s=self._rule.budget_s - seconds,
                blocks=width.repeats,
                seconds_so_far=width.rounds_s,
            )
            repeat_s = start_s + max(self._block_s, width.rounds_s)
        wanted = self._rule.next_repeats(width.reach, width.repeats, seconds, repeat_s=repeat_s)
        certainty = f"within {width.reach:.1%}" if math.isfinite(width.reach) else "without an interval"
        sentence = f"the speedup is known {certainty} after {plural(width.repeats, 'block')}"
        if wanted > width.repeats:
            echo(f"{sentence}: {wanted - width.repeats} more")
        else:
            echo(f"{sentence}, {seconds / 60:.1f} minutes{self._outlook(width, repeat_s)}")
        return wanted

    def _outlook(self, width: MeasuredWidth, repeat_s: float) -> str:
        """Return what more time would give, an empty text where there is no interval."""
        if not 0 < width.reach < math.inf or width.repeats < FEWEST_BLOCKS:
            return ""
        if width.reach <= self._rule.width:
            twice = expected_reach(width.reach, width.repeats, 2 * width.repeats)
            return f"; twice the blocks would give about {twice:.1%}"
        more = self._rule.blocks_for_width(width.reach, width.repeats)
        asked = f"{100 * self._rule.width:g} %"
        if more is None:
            return f"; no sensible number of blocks would give {asked}"
        return f"; {asked} would take about {plural(more, 'more block')}, {more * repeat_s / 60:.0f} minutes"
