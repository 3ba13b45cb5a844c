"""The times that launches have in turns, in the place of those that they recorded of whole epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean

import pandas as pd

from harness.analysis.launch_frames import PARTS
from harness.analysis.turn_blocks import BlockTimes, read_turn_block
from harness.base.errors import UserError
from harness.schema.layout import Layout, layout_order
from harness.schema.record import RunRecord
from harness.schema.sweep_folder import SweepFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepTurns:
    """The blocks of a sweep by name; `damaged` has one sentence for each file of turns that cannot be read."""

    blocks: Mapping[str, BlockTimes]
    damaged: tuple[str, ...]


def read_turn_blocks(folder: Path, runs: Sequence[RunRecord]) -> SweepTurns:
    """Return the blocks in which valid launches of `runs` trained in turns; a block whose file is missing has none."""
    blocks = {}
    damaged = []
    for name in sorted({run.block for run in runs if run.block and not run.invalid}):
        path = SweepFolder(folder).block_turns(name)
        if not path.exists():
            continue
        try:
            blocks[name] = read_rounds(path)
        except UserError as error:
            damaged.append(str(error))
    return SweepTurns(blocks=blocks, damaged=tuple(damaged))


def read_rounds(path: Path) -> BlockTimes:
    """Return the times of the block whose turns are in the Parquet file at `path`.

    Raises:
        UserError: the file is cut, empty or another program's.
    """
    try:
        return read_turn_block(pd.read_parquet(path))
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UserError(
            f"'{path}' cannot be read as the turns of a block: delete it and its launches, and run the sweep again"
        ) from error


def _blocks_of(run: RunRecord, blocks: Mapping[str, BlockTimes]) -> list[BlockTimes]:
    """Return the `blocks` that time the launch `run`: its own, and of a base every one in which it stands for it."""
    launch = run.point.folder
    own_block = blocks.get(run.block)
    timed = [own_block] if own_block is not None and own_block.has(launch) else []
    return timed + [block for block in blocks.values() if block is not own_block and block.base == launch]


def untimed_layouts(runs: Sequence[RunRecord], blocks: Mapping[str, BlockTimes]) -> tuple[Layout, ...]:
    """Return the layouts without a valid launch in turns, where others have one: then no launch is timed by its turns.

    Times in turns and times of launches one after the other are not compared: only the first are of the same moments.
    """
    valid = [run for run in runs if not run.invalid]
    layouts = {run.point.layout for run in valid}
    timed = {run.point.layout for run in valid if _blocks_of(run, blocks)}
    return tuple(sorted(layouts - timed, key=layout_order)) if timed else ()


def without_untimed(runs: Sequence[RunRecord], blocks: Mapping[str, BlockTimes]) -> tuple[RunRecord, ...]:
    """Return the `runs`, those invalid that no block times; as they are where there are `untimed_layouts` or no turns.

    A launch without times in turns is not compared with launches that have some.
    """
    timed = {run.point.folder for run in runs if _blocks_of(run, blocks)}
    if not timed or untimed_layouts(runs, blocks):
        return tuple(runs)
    reason = "it has no times in turns, in which the sweep's other launches are compared"
    return tuple(run if run.invalid or run.point.folder in timed else replace(run, invalid=(reason,)) for run in runs)


def with_turn_times(epochs: pd.DataFrame, runs: Sequence[RunRecord], blocks: Mapping[str, BlockTimes]) -> pd.DataFrame:
    """Return `epochs` with the times that the launches have in turns; see `launch_frames.epoch_frame`.

    What a launch recorded of its epochs contains what other work did to it. It is scaled, parts and all, so that its
    median epoch takes the time of its turns.
    """
    timed = {run.point.folder: _blocks_of(run, blocks) for run in runs}
    if not blocks or not all(timed[run.point.folder] for run in runs if not run.invalid):
        return epochs
    recorded = epochs[epochs["timed"]].groupby("run", sort=False)["seconds"].median()
    seconds = recorded.to_dict()
    ran_seconds: dict[str, float] = {}
    first_block: dict[str, BlockTimes] = {}
    for run in runs:
        folder = run.point.folder
        if timed[folder]:
            steps = run.steps_per_epoch
            seconds[folder] = steps * geometric_mean(block.step_seconds(folder) for block in timed[folder])
            ran_seconds[folder] = steps * geometric_mean(block.as_it_ran[folder] for block in timed[folder])
            first_block[folder] = timed[folder][0]
    factor = epochs["run"].map(pd.Series(seconds) / recorded)
    scaled = epochs.assign(**{name: epochs[name] * factor for name in ("seconds", *PARTS, "trained_s")})
    return scaled.assign(
        recorded_seconds=epochs["seconds"],
        ran_seconds=epochs["run"].map(ran_seconds).astype(float),
        turn_block=epochs["run"].map(first_block),
    )
