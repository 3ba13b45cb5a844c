"""Read a sweep's folder: what is whole is returned, what is damaged is named."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.launch_frames import METRICS, PARTS, Columns, epoch_columns, epoch_frame, epoch_times
from harness.analysis.time_parts import SlowRank, slow_rank
from harness.analysis.turn_blocks import BlockTimes, read_turn_block
from harness.analysis.units import percent
from harness.base.errors import UserError
from harness.base.parallel_work import read_each
from harness.schema.layout import Layout, layout_order
from harness.schema.record import Account, Failure, RunRecord, decode, read_accounts, read_run
from harness.schema.sweep import Study
from harness.schema.sweep_folder import RUN_FILE, STUDY_FILE, LaunchFolder, SweepFolder
from harness.schema.workload import OF_ALL_RANKS

# The times that launches have in turns, in the place of those that they recorded of whole epochs.


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


def _blocks_of_launches(runs: Sequence[RunRecord], blocks: Mapping[str, BlockTimes]) -> dict[str, list[BlockTimes]]:
    """Return by folder the `blocks` that time each of `runs`: its own, and of a base every one in which it stands."""
    blocks_of_base: dict[str, list[BlockTimes]] = {}
    for block in blocks.values():
        blocks_of_base.setdefault(block.base, []).append(block)
    timing = {}
    for run in runs:
        launch = run.point.folder
        own_block = blocks.get(run.block)
        timed = [own_block] if own_block is not None and own_block.has(launch) else []
        timed += [block for block in blocks_of_base.get(launch, ()) if block is not own_block]
        timing[launch] = timed
    return timing


def untimed_layouts(runs: Sequence[RunRecord], blocks: Mapping[str, BlockTimes]) -> tuple[Layout, ...]:
    """Return the layouts without a valid launch in turns, where others have one: then no launch is timed by its turns.

    Times in turns and times of launches one after the other are not compared: only the first are of the same moments.
    """
    valid = [run for run in runs if not run.invalid]
    timing = _blocks_of_launches(valid, blocks)
    layouts = {run.point.layout for run in valid}
    timed = {run.point.layout for run in valid if timing[run.point.folder]}
    return tuple(sorted(layouts - timed, key=layout_order)) if timed else ()


def without_untimed(runs: Sequence[RunRecord], blocks: Mapping[str, BlockTimes]) -> tuple[RunRecord, ...]:
    """Return the `runs`, those invalid that no block times; as they are where there are `untimed_layouts` or no turns.

    A launch without times in turns is not compared with launches that have some.
    """
    timed = {launch for launch, timing in _blocks_of_launches(runs, blocks).items() if timing}
    if not timed or untimed_layouts(runs, blocks):
        return tuple(runs)
    reason = "it has no times in turns, in which the sweep's other launches are compared"
    return tuple(run if run.invalid or run.point.folder in timed else replace(run, invalid=(reason,)) for run in runs)


def with_turn_times(epochs: pd.DataFrame, runs: Sequence[RunRecord], blocks: Mapping[str, BlockTimes]) -> pd.DataFrame:
    """Return `epochs` with the times that the launches have in turns; see `launch_frames.epoch_frame`.

    What a launch recorded of its epochs contains what other work did to it. It is scaled, parts and all, so that its
    median epoch takes the time of its turns.
    """
    timed = _blocks_of_launches(runs, blocks)
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


T = TypeVar("T")
_LAUNCH = re.compile(r"n\d+x\d+x\d+-r\d+-[0-9a-f]{12}")  # Point.folder
_ALIKE = 0.05  # of a script's number: rounding, which a long training magnifies
_LEAST = 0.2  # of smaller numbers the difference counts as one of this
_REPEATED = 0.01  # the same of launches on one rank among themselves: those of a script without seeds differ by more


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A sweep's folder in memory. `damaged` has one sentence for each file or folder that was left out.

    The `runs` are without their `epochs`, which would fill the memory: `epochs` (`launch_frames.epoch_frame`) has what
    analyses need of them, `slow` the ranks that the others of their launch waited for. `other_code` counts the
    launches that were left out because they ran other code (`Point.code`) than the sweep's last command asked for.
    `accounts` are of every job that a scheduler ran for the sweep, `replaced` the records of launches that did not
    count and were made again, `failed` every launch that left none, also of points in `runs`. `unwitnessed` says that
    launches on one rank do not tell whether those of a script on several ranks train as it does alone.
    `untimed_layouts` have no launch in turns, where others have some: then all times are those of whole launches.
    `blocks` are those of its turns, by name.
    """

    folder: Path
    study: Study | None
    runs: tuple[RunRecord, ...]
    epochs: pd.DataFrame
    slow: tuple[SlowRank, ...]
    damaged: tuple[str, ...]
    failures: tuple[Failure, ...]
    other_code: int = 0
    accounts: tuple[Account, ...] = ()
    replaced: tuple[RunRecord, ...] = ()
    failed: tuple[Failure, ...] = ()
    unwitnessed: bool = False
    untimed_layouts: tuple[Layout, ...] = ()
    blocks: Mapping[str, BlockTimes] = field(default_factory=dict)

    @property
    def launched(self) -> tuple[RunRecord, ...]:
        """All launches that left a record: what the sweep has cost."""
        return (*self.runs, *self.replaced)

    @property
    def peak_tflops(self) -> float | None:
        """The peak of a rank's device that the sweep's last command has stated."""
        return self.study.sweep.workload.peak_tflops if self.study else None

    @property
    def valid(self) -> tuple[RunRecord, ...]:
        """The launches whose times may be used."""
        return tuple(run for run in self.runs if not run.invalid)


def load_sweep(folder: Path, *, every_code: bool = False) -> Loaded:
    """Read every launch, failure and the study file under `folder`, launches in order of ranks and repeats.

    Launches of other code than the sweep's last command asked for are counted and left out, but with `every_code`.

    A launch that is cut, inconsistent, moved or of another workload than the study's is left out and
    named in `damaged`; so is a damaged study or failure file. A failure whose point finished in a later
    attempt is dropped.

    Raises:
        UserError: `folder` is not a folder.
    """
    if not folder.is_dir():
        raise UserError(f"sweep '{folder}' is not a folder: give the path of a folder in results/")
    reader = _Reader(folder)
    study = reader.study()
    launches = reader.launches(study)
    code = study.sweep.code if study and not every_code else None
    of_code = [launch for launch in launches if code in (None, launch.run.point.code)]
    counted, unwitnessed = _beside_one_rank(of_code)
    counted_runs = [launch.run for launch in counted]
    blocks = reader.turn_blocks(counted_runs)
    failed = reader.failures(code)
    finished = {launch.run.point.folder for launch in counted}
    last_failure = {failure.point.folder: failure for failure in failed if failure.point.folder not in finished}
    # The times of their turns, where all layouts have some.
    runs = without_untimed(counted_runs, blocks)
    epochs = epoch_frame(runs, [launch.epochs for launch in counted]) if counted else pd.DataFrame()
    return Loaded(
        folder=folder,
        study=study,
        runs=runs,
        epochs=with_turn_times(epochs, runs, blocks),
        slow=tuple(launch.slow for launch in counted if launch.slow),
        accounts=reader.accounts(),
        damaged=tuple(sorted(reader.damaged)),
        failures=tuple(last_failure.values()),
        other_code=len(launches) - len(of_code),
        replaced=tuple(reader.replaced()),
        failed=failed,
        unwitnessed=unwitnessed,
        untimed_layouts=untimed_layouts(counted_runs, blocks),
        blocks=blocks,
    )


class _Reader:
    """Reads the parts of a sweep's folder; `damaged` has a sentence on each file that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._files = SweepFolder(folder)
        self.damaged: list[str] = []

    def study(self) -> Study | None:
        return self._decoded(self._files.study, Study) if self._files.study.exists() else None

    def launches(self, study: Study | None) -> list["_ReadLaunch"]:
        """Return the launches in order of ranks and repeats."""
        children = [child for child in self._files.path.iterdir() if _is_launch(child)]
        launches = []
        read = partial(_read_launch, study=study)
        for result in read_each(read, children, doing="reading launches"):
            if isinstance(result, str):
                self.damaged.append(result)
            else:
                launches.append(result)
        return sorted(launches, key=_launch_order)

    def turn_blocks(self, runs: Sequence[RunRecord]) -> dict[str, BlockTimes]:
        """Return the blocks of valid `runs` in turns by name; one whose file is missing or damaged is none."""
        blocks = {}
        for name in sorted({run.block for run in runs if run.block and not run.invalid}):
            path = self._files.block_turns(name)
            if not path.exists():
                continue
            try:
                blocks[name] = read_rounds(path)
            except UserError as error:
                self.damaged.append(str(error))
        return blocks

    def accounts(self) -> tuple[Account, ...]:
        try:
            return read_accounts(self._files)
        except UserError as error:
            self.damaged.append(str(error))
            return ()

    def failures(self, code: str | None) -> tuple[Failure, ...]:
        """Return the failures of `code`, of every code where it is None; a point's last one is the last."""
        failures = []
        for path in sorted(self._files.failures.glob("*.json")):  # `-attempt1.json` comes before `.json`
            failure = self._decoded(path, Failure)
            if failure is not None and code in (None, failure.point.code):
                failures.append(failure)
        return tuple(failures)

    def replaced(self) -> Iterator[RunRecord]:
        for path in sorted(self._files.replaced.glob(f"*/{RUN_FILE}")):
            with contextlib.suppress(UserError):  # perhaps it was replaced because it is damaged
                yield replace(read_run(path.parent), epochs=())

    def _decoded(self, path: Path, kind: type[T]) -> T | None:
        """Return what the file holds, None where it is damaged."""
        try:
            return decode(path.read_bytes(), kind, path)
        except UserError as error:
            self.damaged.append(str(error))
            return None


def _launch_order(launch: "_ReadLaunch") -> tuple[int, str, int]:
    point = launch.run.point
    return point.layout.ranks, point.folder, point.repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReadLaunch:
    """One launch: its record without epochs, and what analyses need of these."""

    run: RunRecord
    epochs: Columns
    slow: SlowRank | None


def _beside_one_rank(launches: list[_ReadLaunch]) -> tuple[list[_ReadLaunch], bool]:
    """Return the launches, those of a user's script invalid that ended an epoch elsewhere than the script alone.

    On one rank the script is undivided: with the batch of all ranks, the others train as it does. True beside them:
    this is not known, as launches on one rank differ among themselves (draws without a seed) or there is one only.
    """
    undivided = [launch for launch in launches if launch.run.point.layout.ranks == 1]
    script = launches[0].run.point.workload.script if len(undivided) < len(launches) else None
    if script is None or script.batch != OF_ALL_RANKS:
        return launches, False
    if len(undivided) < 2 or max(_distance(*pair) for pair in combinations(undivided, 2)) > _REPEATED:
        return launches, True
    return [_judged_beside(launch, undivided) for launch in launches], False


def _judged_beside(launch: _ReadLaunch, undivided: Sequence[_ReadLaunch]) -> _ReadLaunch:
    """Return `launch`, invalid where it trained otherwise than all of the `undivided` ones on one rank."""
    if launch.run.point.layout.ranks == 1:
        return launch
    distance = min(_distance(launch, reference) for reference in undivided)
    if distance <= _ALIKE:
        return launch
    reason = f"the script trained otherwise than on one rank: its numbers are up to {percent(distance)} apart"
    return replace(launch, run=replace(launch.run, invalid=(*launch.run.invalid, reason)))


def _distance(launch: _ReadLaunch, reference: _ReadLaunch) -> float:
    """Return the greatest relative difference of losses, accuracies and the final weights' length of two launches."""
    epochs = min(len(launch.epochs["epoch"]), len(reference.epochs["epoch"]))
    values = _training_numbers(launch, epochs)
    expected = _training_numbers(reference, epochs)
    both_missing = np.isnan(values) & np.isnan(expected)
    gaps = np.where(both_missing, 0.0, np.abs(values - expected) / np.maximum(np.abs(expected), _LEAST))
    return float(np.nan_to_num(gaps, nan=1.0).max())  # one of the two is not finite


def _training_numbers(launch: _ReadLaunch, epochs: int) -> NDArray[np.float64]:
    """Return the metrics of the first `epochs` and the length of the final weights, NaN where not known."""
    metrics = [launch.epochs[name][:epochs] for name in METRICS]
    return np.array([*np.concatenate(metrics), launch.run.weights.length or np.nan])


def _read_launch(child: Path, study: Study | None) -> _ReadLaunch | str:
    """Return the launch in folder `child`, or one sentence that says why it is left out."""
    try:
        run = read_run(child)
    except UserError as error:
        return str(error)
    point = run.point
    if child.name != point.folder:
        return (
            f"'{child}' holds the record of '{point.folder}', so it was moved by hand, or is of an older harness: "
            "delete the folder and run the point again"
        )
    # Under weak scaling the number of rows grows with the ranks.
    if study and replace(point.workload, samples=None) != replace(study.sweep.workload, samples=None):
        return f"'{child}' trained another workload than {STUDY_FILE} names: move it to a folder of its own"
    times = epoch_times(run)
    timed = epoch_times(run.as_timed()) if run.segments else times
    return _ReadLaunch(run=replace(run, epochs=()), epochs=epoch_columns(run, times), slow=slow_rank(run, timed))


def _is_launch(child: Path) -> bool:
    """Return whether `child` is a launch's folder: by its name, or by a record under another name."""
    if child.name.startswith("."):  # being written, or left by a launch that was killed while it wrote
        return False
    return child.is_dir() and (_LAUNCH.fullmatch(child.name) is not None or LaunchFolder(child).is_recorded)
