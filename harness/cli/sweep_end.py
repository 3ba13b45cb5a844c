"""When a sweep ends that is asked for no number of repeats: by the width of its intervals, or by its time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from harness.analysis.confidence_intervals import FEWEST_BLOCKS, expected_reach
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import PointScaling, scale
from harness.analysis.units import plural
from harness.cli.terminal import echo
from harness.schema.record import RunRecord
from harness.schema.sweep import USUAL_MINUTES, USUAL_WIDTH

_LOOKS = (3, 6, 9, 12, 18, 24, 36, 48, 72, 96, 144, 192)  # blocks after which it is asked whether intervals are narrow
_CONFIRMING = 2  # blocks that are made after they were
_ENOUGH_BLOCKS = 6  # intervals of fewer must be half as wide


@dataclass(frozen=True, kw_only=True, slots=True)
class EndRule:
    """A sweep ends when half the width of its intervals is `width` (of the logarithm), or after `budget_s` seconds."""

    width: float = USUAL_WIDTH
    budget_s: float = 60 * USUAL_MINUTES

    def next_repeats(self, reach: float, repeats: int) -> int:
        """Return how many repeats a sweep of `repeats` shall have by its width: the same number where it ends.

        `reach` is half the width of its widest speedup's interval, of the logarithm. To stop where an interval happens
        to be narrow costs some of its coverage. So it must be narrow still after two more blocks, and intervals of few
        blocks must be the narrower: of intervals of 95 %, 93 to 95 % hold the truth, by simulation
        (tests/cli/test_sweep_end.py).
        """
        narrow = self.width if repeats >= _ENOUGH_BLOCKS else self.width / 2
        if reach <= narrow:
            return min((look + _CONFIRMING for look in _LOOKS if look + _CONFIRMING >= repeats), default=repeats)
        return min((look for look in _LOOKS if look > repeats), default=repeats)

    def within_budget(self, wanted: int, repeats: int, seconds: float, repeat_s: float) -> int:
        """Return how many of the `wanted` repeats end in time, after `seconds` in which there came to be `repeats`.

        A further one takes `repeat_s` seconds.
        """
        left_s = max(0.0, self.budget_s - seconds)
        return min(wanted, repeats + int(left_s / repeat_s))

    def blocks_for_width(self, reach: float, repeats: int) -> int | None:
        """Return how many more blocks would make the interval so narrow, None where no sensible number would."""
        for blocks in range(repeats, _LOOKS[-1] + 1):
            if expected_reach(reach, repeats, blocks) <= self.width:
                return blocks - repeats
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredWidth:
    """Half the width of a sweep's widest interval (`reach`, of the logarithm; infinite where there is none).

    It is of so many `repeats`, each of which took `repeat_s` seconds at least.
    """

    reach: float
    repeats: int
    repeat_s: float


def measure_width(folder: Path) -> MeasuredWidth:
    """Read the sweep in `folder`, and return how well its speedups are known."""
    loaded = load_sweep(folder)
    launches = launch_frame(loaded.runs, loaded.epochs)
    scaling = scale(launches)
    in_blocks = [point for point in scaling.others if point.blocks] if scaling else []
    return MeasuredWidth(
        reach=max(map(_reach, in_blocks), default=0.0),
        repeats=int(launches["repeat"].max()) + 1,
        repeat_s=_repeat_seconds(loaded.runs),
    )


def _reach(point: PointScaling) -> float:
    interval = point.speedup_interval
    return interval.log_reach if interval else math.inf


def _repeat_seconds(runs: Sequence[RunRecord]) -> float:
    """Return the mean seconds of a repeat: of each of its blocks, those of the launch that took longest."""
    longest: dict[tuple[int, str], float] = {}
    for run in runs:
        block = (run.point.repeat, run.block or run.point.folder)
        longest[block] = max(longest.get(block, 0.0), run.wall_seconds)
    repeats = {repeat for repeat, _ in longest}
    return sum(longest.values()) / len(repeats)


def until_known(rule: EndRule) -> Callable[[Path], int]:
    """Return what `run_sweep` asks after each part of a sweep: how many repeats there shall be by `rule`."""
    begun = monotonic()

    def wanted_repeats(folder: Path) -> int:
        """Return how many repeats the sweep in `folder` shall have, and say why: the same number where it ends."""
        width = measure_width(folder)
        seconds = monotonic() - begun
        # Records do not have the start and the end of a block; of a sweep that is taken up again they are all there is.
        repeat_s = max(width.repeat_s, seconds / width.repeats)
        wanted = rule.next_repeats(width.reach, width.repeats)
        wanted = rule.within_budget(wanted, width.repeats, seconds, repeat_s)
        blocks = plural(width.repeats, "block")
        sentence = f"the speedup has no interval after {blocks}"
        if math.isfinite(width.reach):
            sentence = f"the speedup is known within {width.reach:.1%} after {blocks}"
        if wanted > width.repeats:
            echo(f"{sentence}: {wanted - width.repeats} more")
        else:
            echo(f"{sentence}, {seconds / 60:.1f} minutes{_outlook(rule, width, repeat_s)}")
        return wanted

    return wanted_repeats


def _outlook(rule: EndRule, width: MeasuredWidth, repeat_s: float) -> str:
    """Return what more time would give, an empty text where there is no interval."""
    if not 0 < width.reach < math.inf or width.repeats < FEWEST_BLOCKS:
        return ""
    if width.reach <= rule.width:
        twice = expected_reach(width.reach, width.repeats, 2 * width.repeats)
        return f"; twice the blocks would give about {twice:.1%}"
    more = rule.blocks_for_width(width.reach, width.repeats)
    asked = f"{100 * rule.width:g} %"
    if more is None:
        return f"; no sensible number of blocks would give {asked}"
    return f"; {asked} would take about {plural(more, 'more block')}, {more * repeat_s / 60:.0f} minutes"
