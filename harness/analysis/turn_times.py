"""The times that launches have in turns, in the place of those that they recorded of whole epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pandas as pd

from harness.analysis.frames import PARTS
from harness.analysis.turn_blocks import TurnBlock, read_turn_block
from harness.schema.record import RunRecord
from harness.schema.sweep_folder import SweepFolder


def read_turn_blocks(folder: Path, runs: Sequence[RunRecord]) -> dict[str, TurnBlock]:
    """Return the blocks in which valid launches of `runs` trained in turns, by name."""
    names = sorted({run.block for run in runs if run.block and not run.invalid})
    blocks = {name: read_rounds(folder, name) for name in names}
    return {name: block for name, block in blocks.items() if block is not None}


def read_rounds(folder: Path, block: str) -> TurnBlock | None:
    """Return the times of a `block` of the sweep in `folder`; None without them."""
    path = SweepFolder(folder).block_turns(block)
    try:
        return read_turn_block(pd.read_parquet(path))
    except (OSError, ValueError, KeyError, IndexError):  # a file that is missing, cut, empty or another program's
        return None


def _blocks_of(run: RunRecord, blocks: Mapping[str, TurnBlock]) -> list[TurnBlock]:
    """Return the `blocks` that time the launch `run`: its own, and of a base every one in which it stands for it."""
    launch = run.point.folder
    own = blocks.get(run.block)
    timed = [own] if own is not None and own.has(launch) else []
    return timed + [block for block in blocks.values() if block is not own and block.base == launch]


def without_untimed(runs: Sequence[RunRecord], blocks: Mapping[str, TurnBlock]) -> tuple[RunRecord, ...]:
    """Return the `runs`, those invalid that no block times; as they are where a layout has no launch in turns.

    Times in turns and times of launches one after the other are not compared: only the first are of the same moments.
    """
    timed = {run.point.folder for run in runs if _blocks_of(run, blocks)}
    layouts = {run.point.layout for run in runs if not run.invalid}
    timed_layouts = {run.point.layout for run in runs if not run.invalid and run.point.folder in timed}
    if timed_layouts != layouts:
        return tuple(runs)
    reason = "it has no times in turns, in which the sweep's other launches are compared"
    return tuple(run if run.invalid or run.point.folder in timed else replace(run, invalid=(reason,)) for run in runs)


def with_turn_times(epochs: pd.DataFrame, runs: Sequence[RunRecord], blocks: Mapping[str, TurnBlock]) -> pd.DataFrame:
    """Return `epochs` with the times that the launches have in turns; see `frames.epoch_frame`.

    What a launch recorded of its epochs contains what other work did to it. It is scaled, parts and all, so that its
    median epoch takes the time of its turns.
    """
    timed = {run.point.folder: _blocks_of(run, blocks) for run in runs}
    if not blocks or not all(timed[run.point.folder] for run in runs if not run.invalid):
        return epochs
    recorded = epochs.groupby("run", sort=False)["seconds"].median()
    seconds, ran_seconds, own_block = recorded.to_dict(), dict[str, float](), dict[str, TurnBlock]()
    for run in runs:
        folder = run.point.folder
        if timed[folder]:
            steps = run.steps_per_epoch
            seconds[folder] = steps * geometric_mean(block.step_seconds(folder) for block in timed[folder])
            ran_seconds[folder] = steps * geometric_mean(block.as_it_ran[folder] for block in timed[folder])
            own_block[folder] = timed[folder][0]
    factor = epochs["run"].map(pd.Series(seconds) / recorded)
    scaled = epochs.assign(**{name: epochs[name] * factor for name in ("seconds", *PARTS, "trained_s")})
    return scaled.assign(
        recorded_seconds=epochs["seconds"],
        ran_seconds=epochs["run"].map(ran_seconds).astype(float),
        turn_block=epochs["run"].map(own_block),
    )
