"""Read a sweep's folder: what is whole is returned, what is damaged is named; and one rule which of several to read.

And every synchronisation call of a launch, as steps.parquet has it: when each rank came and when it left.
"""

import contextlib
import gc
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from harness.analysis.frames import (
    METRICS,
    Columns,
    SlowRank,
    epoch_columns,
    epoch_frame,
    epoch_times,
    slow_rank,
)
from harness.analysis.numbers import percent, plural
from harness.analysis.turn_times import read_turn_blocks, with_turn_times, without_untimed
from harness.base.errors import UserError
from harness.schema.job_usage import Account
from harness.schema.presets import PRESETS, resolve
from harness.schema.record import EpochRecord, RunRecord, decode, read_accounts, read_run
from harness.schema.sweep import Failure, Study
from harness.schema.sweep_folder import RUN_FILE, STUDY_FILE, LaunchFolder, SweepFolder, sweep_folders
from harness.schema.workload import Workload, batch_mode, is_script

T = TypeVar("T")
_LAUNCH = re.compile(r"n\d+x\d+x\d+-r\d+-[0-9a-f]{12}")  # Point.folder
RULE = "settings as its preset has them, then most valid launches, then newest"
_FREE = ("samples", "epochs", "seed", "data", "data_file", "distribution", "input")
_MANY = 1000  # launches from which starting processes to read them (1 to 2 s) pays
_ALIKE, _LEAST = 0.05, 0.2  # of a script's number, at least of this: rounding, which a long training magnifies
_REPEATED = 0.01  # the same of launches on one rank among themselves: those of a script without seeds differ by more
_MOST_READERS = 8  # each takes 0.1 GB, and a login node is others' too


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A sweep's folder in memory. `damaged` has one sentence for each file or folder that was left out.

    The `runs` are without their `epochs`, which would fill the memory: `epochs` (`frames.epoch_frame`) has what
    analyses need of them, `slow` the ranks that the others of their launch waited for. `other_code` counts the
    launches that were left out because they ran other code (`Point.code`) than the sweep's last command asked for.
    `accounts` are of every job that a scheduler ran for the sweep, `replaced` the records of launches that did not
    count and were made again, `failed` every launch that left none, also of points in `runs`. `unwitnessed` says that
    launches on one rank do not tell whether those of a script on several ranks train as it does alone.
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

    @property
    def launched(self) -> tuple[RunRecord, ...]:
        """All launches that left a record: what the sweep has cost."""
        return (*self.runs, *self.replaced)

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
    damaged: list[str] = []
    path = SweepFolder(folder).study
    study = _decoded(path, Study, damaged) if path.exists() else None
    found = list(_each(partial(_read_launch, study=study), [child for child in folder.iterdir() if _is_launch(child)]))
    damaged += [one for one in found if isinstance(one, str)]
    read = sorted(
        (one for one in found if isinstance(one, _Read)),
        key=lambda one: (one.run.point.layout.ranks, one.run.point.folder, one.run.point.repeat),
    )
    accounts: tuple[Account, ...] = ()
    try:
        accounts = read_accounts(folder)
    except UserError as error:
        damaged.append(str(error))
    damaged.sort()
    code = study.sweep.code if study and not every_code else None
    every = read
    read, unwitnessed = _beside_one_rank([one for one in read if code in (None, one.run.point.code)])
    runs = tuple(launch.run for launch in read)
    turn_blocks = read_turn_blocks(folder, runs)
    runs = without_untimed(runs, turn_blocks)
    epochs = epoch_frame(runs, [launch.epochs for launch in read]) if read else pd.DataFrame()
    finished = {run.point.folder for run in runs}
    failed = tuple(  # a point's last failure last: `-attempt1.json` comes before `.json`
        failure
        for path in sorted(SweepFolder(folder).failures.glob("*.json"))
        if (failure := _decoded(path, Failure, damaged)) and code in (None, failure.point.code)
    )
    return Loaded(
        folder=folder,
        study=study,
        runs=runs,
        epochs=with_turn_times(epochs, runs, turn_blocks),
        slow=tuple(one.slow for one in read if one.slow),
        damaged=tuple(damaged),
        failures=tuple({one.point.folder: one for one in failed if one.point.folder not in finished}.values()),
        other_code=len(every) - len(read),
        accounts=accounts,
        replaced=tuple(_replaced(folder)),
        failed=failed,
        unwitnessed=unwitnessed,
    )


def _replaced(folder: Path) -> Iterator[RunRecord]:
    for path in sorted(SweepFolder(folder).replaced.glob(f"*/{RUN_FILE}")):
        with contextlib.suppress(UserError):  # perhaps it was replaced because it is damaged
            yield replace(read_run(path.parent), epochs=())


def _decoded(path: Path, kind: type[T], damaged: list[str]) -> T | None:
    """Return what the file holds, None where it is damaged: the error joins `damaged`."""
    try:
        return decode(path.read_bytes(), kind, path)
    except UserError as error:
        damaged.append(str(error))
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """One launch: its record without epochs, and what is kept of these."""

    run: RunRecord
    epochs: Columns
    slow: SlowRank | None


def _beside_one_rank(read: list[_Read]) -> tuple[list[_Read], bool]:
    """Return the launches, those of a user's script invalid that ended an epoch elsewhere than the script alone.

    On one rank the script is undivided: with the batch of all ranks, the others train as it does. True beside them:
    this is not known, as launches on one rank differ among themselves (draws without a seed) or there is one only.
    """
    alone = [one for one in read if one.run.point.layout.ranks == 1]
    workload = read[0].run.point.workload if len(alone) < len(read) else None
    if workload is None or not is_script(workload) or batch_mode(workload) != "global":
        return read, False
    if len(alone) < 2 or max(_apart(*pair) for pair in combinations(alone, 2)) > _REPEATED:
        return read, True

    def judged(one: _Read) -> _Read:
        if one.run.point.layout.ranks == 1 or (far := min(_apart(one, each) for each in alone)) <= _ALIKE:
            return one
        said = f"the script trained otherwise than on one rank: its numbers are up to {percent(far)} apart"
        return replace(one, run=replace(one.run, invalid=(*one.run.invalid, said)))

    return [judged(one) for one in read], False


def _apart(one: _Read, other: _Read) -> float:
    """Return the greatest relative difference of losses, accuracies and the final weights' length of two launches."""
    count = min(len(one.epochs["epoch"]), len(other.epochs["epoch"]))
    own, its = (
        np.array([*np.concatenate([each.epochs[name][:count] for name in METRICS]), each.run.weights.length or np.nan])
        for each in (one, other)
    )
    gaps = np.where(np.isnan(own) & np.isnan(its), 0.0, np.abs(own - its) / np.maximum(np.abs(its), _LEAST))
    return float(np.nan_to_num(gaps, nan=1.0).max())  # one of the two is not finite


def _each(read: Callable[[Path], _Read | str], launches: Sequence[Path]) -> Iterator[_Read | str]:
    """Return what `read` returns of each of the `launches`; many are shared out to processes."""
    if len(launches) < _MANY:
        yield from map(read, launches)
        return
    server = get_context("forkserver")  # a fork of this process would not have its threads, only their locks
    server.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(
        max_workers=min(_MOST_READERS, len(os.sched_getaffinity(0))), mp_context=server, initializer=_start_reading
    ) as pool:
        yield from pool.map(read, launches, chunksize=50)


def _start_reading() -> None:
    """Prepare a process that reads launches: Ctrl-C is its parent's to hear, and what it reads has no cycles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


def _read_launch(child: Path, study: Study | None) -> _Read | str:
    """Return the launch in folder `child`, or one sentence that says why it is left out."""
    try:
        run = read_run(child)
    except UserError as error:
        return str(error)
    own = run.point
    if child.name != own.folder:
        again = "delete the folder and run the point again"
        return (
            f"'{child}' holds the record of '{own.folder}', so it was moved by hand, or is of an older harness: {again}"
        )
    # Under weak scaling the number of rows grows with the ranks.
    if study and replace(own.workload, samples=None) != replace(study.sweep.workload, samples=None):
        return f"'{child}' trained another workload than {STUDY_FILE} names: move it to a folder of its own"
    times = epoch_times(run)
    return _Read(run=replace(run, epochs=()), epochs=epoch_columns(run, times), slow=slow_rank(run, times))


def _is_launch(child: Path) -> bool:
    """Return whether `child` is a launch's folder: by its name, or by a record under another name."""
    if child.name.startswith("."):  # being written, or left by a launch that was killed while it wrote
        return False
    return child.is_dir() and (_LAUNCH.fullmatch(child.name) is not None or LaunchFolder(child).is_recorded)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepChoice:
    """The sweep that was taken, of how many that have valid launches."""

    loaded: Loaded
    candidates: int

    def sentence(self, what: str) -> str:
        """Return which sweep was taken for `what`, and why."""
        taken = f"{what}: {self.loaded.folder.name}, {plural(len(self.loaded.valid), 'valid launch')}"
        return f"{taken}, of {self.candidates} sweeps ({RULE})" if self.candidates > 1 else f"{taken}, the only sweep"


def choose_sweep(results: Path, wanted: Callable[[Study], bool], *, every_code: bool = False) -> SweepChoice | None:
    """Return the sweep of `results` that answers among those `wanted`, which is what can be compared; None of none.

    Only sweeps with a valid launch count, so that one that was planned and never launched does not; unless for
    `every_code`, a launch of the code that the sweep's last command asked for. Of these, one that trains as its preset
    has it comes before one with settings of its own (SYNC=none, say), then the one with more valid launches, then the
    one whose last launch is the newest.

    Raises:
        UserError: a study file is damaged.
    """
    found = []
    for folder in sweep_folders(results):
        study = decode(SweepFolder(folder).study.read_bytes(), Study, SweepFolder(folder).study)
        if wanted(study):
            loaded = load_sweep(folder, every_code=every_code)
            found += [loaded] if loaded.valid else []
    return SweepChoice(loaded=max(found, key=standing), candidates=len(found)) if found else None


def standing(loaded: Loaded) -> tuple[bool, int, float]:
    """Return what the rule goes by, the largest first: the sweep's settings, its valid launches, its newest one."""
    workload = loaded.study.sweep.workload if loaded.study else loaded.valid[0].point.workload
    newest = max((run.started.timestamp() for run in loaded.valid), default=0.0)
    return as_preset(workload), len(loaded.valid), newest


def as_preset(workload: Workload) -> bool:
    """Tell whether `workload` trains with the settings of its preset; how many rows and epochs is left open."""
    if workload.preset not in PRESETS:
        return True
    usual = resolve(dataset=workload.dataset, model=workload.model, preset=workload.preset)
    return replace(workload, **{name: getattr(usual, name) for name in _FREE}) == usual


Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """The calls of one epoch. Times in seconds since rank 0 began it, on rank 0's clock.

    `begin` and `end` [ranks] are each rank's own of the epoch; `step` [calls] is the step that a call ended, `entry`
    and `exit` [calls, ranks] when each rank came and left. `statistics` [calls + 1, ranks] is what a rank spent in the
    allreduces of batch normalisation between two calls, before the first and after the last, `input` what it waited for
    rows there once the epoch's order was drawn.
    """

    epoch: int
    begin: Array
    end: Array
    step: NDArray[np.int32]
    entry: Array
    exit: Array
    statistics: Array
    input: Array

    @property
    def skew(self) -> Array:
        """Waiting for the last rank to come, [calls, ranks]."""
        waited: Array = self.entry.max(axis=1, keepdims=True) - self.entry
        return waited

    @property
    def wire(self) -> Array:
        """The allreduce itself: from the last rank's entry to the own exit, [calls, ranks]."""
        summed: Array = self.exit - self.entry.max(axis=1, keepdims=True)
        return summed

    @property
    def between(self) -> Array:
        """What a rank did outside of all allreduces: before every call, and after the last one; [calls + 1, ranks]."""
        left = np.vstack([self.begin, self.exit])
        came = np.vstack([self.entry, self.end])
        outside: Array = came - left - self.statistics
        return outside


def read_calls(folder: Path, run: RunRecord) -> tuple[Calls, ...]:
    """Return the calls of every epoch of `run`, read with its epochs from the launch's `folder`.

    An epoch without a call (one rank alone, SYNC=none, a script whose ranks made different numbers of calls) has
    none.

    Raises:
        UserError: the table is damaged, of an older harness, or not of this record; ranks of the launch failed.
    """
    if run.losses:
        raise UserError(
            f"'{folder}' went on after ranks failed, whose steps are not recorded: what it trained between failures is "
            "on its sweep's page"
        )
    path = LaunchFolder(folder).steps
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"'{path}' cannot be read: delete its folder and run the point again") from error
    if "begin_s" not in table.column_names:
        raise UserError(f"'{path}' is of an older harness and lacks begin_s: run the point again")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    order = np.lexsort((columns["step"], columns["rank"], columns["epoch"]))
    columns = {name: values[order] for name, values in columns.items()}
    return tuple(_epoch(path, columns, epoch, len(run.ranks)) for epoch in run.epochs)


def _epoch(path: Path, columns: dict[str, NDArray[np.generic]], epoch: EpochRecord, ranks: int) -> Calls:
    first, last = np.searchsorted(columns["epoch"], [epoch.epoch, epoch.epoch + 1])
    if last - first != epoch.steps * ranks:
        raise UserError(
            f"'{path}' has {last - first} rows of epoch {epoch.epoch}, its record {epoch.steps} steps on {ranks} "
            "ranks: delete the folder and run the point again"
        )

    def of(name: str) -> Array:
        return columns[name][first:last].astype(np.float64).reshape(ranks, epoch.steps).T

    entry, left = of("entry_s"), of("exit_s")
    called = np.isfinite(entry).all(axis=1) & np.isfinite(left).all(axis=1)
    begin = of("begin_s")[0]
    steps = np.flatnonzero(called)

    def spent(name: str) -> Array:
        seconds = of(name) if name in columns else np.zeros_like(entry)
        until = np.vstack([np.zeros(ranks), seconds.cumsum(axis=0)])
        between: Array = np.diff(until[[0, *(steps + 1), epoch.steps]], axis=0)
        return between

    return Calls(
        epoch=epoch.epoch,
        begin=begin,
        end=begin + np.asarray(epoch.seconds),
        step=steps.astype(np.int32),
        entry=entry[called],
        exit=left[called],
        statistics=spent("statistics_s"),
        input=spent("input_s"),
    )
