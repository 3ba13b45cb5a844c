"""How many repeats a sweep in turns shall have: until its speedups are known well enough."""

import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from harness.cli.terminal import echo

if TYPE_CHECKING:
    pass

_MOST = 24  # repeats
_LOOKS = (3, 6, 9, 12, 18)  # after which it is asked whether the intervals are narrow
_CONFIRMING = 2  # blocks that are made after they were
_NARROW = 0.02  # half the width of a speedup's 95 % interval, of its logarithm, from `_ENOUGH_BLOCKS` on
_ENOUGH_BLOCKS = 6
_NARROW_OF_FEW = 0.01  # the same of fewer blocks
_LONGEST_S = 360  # of a sweep that is made until its speedups are that certain


def until_narrow() -> Callable[[Path], int]:
    """Return what `run_sweep` asks after each part of a sweep: how many repeats there shall be."""
    begun = monotonic()

    def wanted_repeats(folder: Path) -> int:
        from harness.analysis.launch_frames import launch_frame
        from harness.analysis.read_results import load_sweep
        from harness.analysis.scaling import scale

        loaded = load_sweep(folder)
        launches = launch_frame(loaded.runs, loaded.epochs)
        repeats = int(launches["repeat"].max()) + 1
        scaling = scale(launches)
        widest = 0.0  # half the width of an interval, of the logarithm
        for point in scaling.others if scaling else ():
            interval = point.speedup_interval
            if point.blocks:
                widest = max(widest, math.log(interval.high / interval.low) / 2 if interval else math.inf)
        wanted = next_repeats(widest, repeats, monotonic() - begun)
        if wanted > repeats:
            certainty = f"within {widest:.1%}" if math.isfinite(widest) else "without an interval"
            echo(f"the speedup is known {certainty} after {repeats} blocks: {wanted - repeats} more")
        return wanted

    return wanted_repeats


def next_repeats(reach: float, repeats: int, seconds: float) -> int:
    """Return how many repeats a sweep shall have of which `repeats` took `seconds`: the same number where it ends.

    `reach` is half the width of its widest speedup's interval, of the logarithm. To stop where an interval happens to
    be narrow costs some of its coverage. So two more blocks are made after it is narrow, and intervals of few blocks
    must be the narrower: of intervals of 95 %, 93 to 95 % hold the truth, by
    simulation (tests/analysis/test_turn_blocks.py).
    """
    if repeats - _CONFIRMING in _LOOKS:
        return repeats
    narrow = _NARROW if repeats >= _ENOUGH_BLOCKS else _NARROW_OF_FEW
    wanted = repeats + _CONFIRMING
    if reach > narrow:
        wanted = min((look for look in _LOOKS if look > repeats), default=_MOST)
    late = seconds * wanted > _LONGEST_S * repeats
    return repeats if late else max(repeats, min(wanted, _MOST))
