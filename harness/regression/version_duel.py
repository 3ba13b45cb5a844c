"""Two versions in turns: blocks of both on every layout, until the verdict is sure or the budget is spent.

The versions are two commits of the harness, an earlier one checked out and built beside, or what a user names. Their
processes are forked from one Python that has imported TensorFlow: most of a block's time would be that.
"""

import contextlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from harness.analysis.confidence_intervals import Interval, mean_over_blocks, median_interval
from harness.analysis.read_results import load_sweep
from harness.analysis.turn_blocks import block_steps, undisturbed_rounds, winsorise
from harness.analysis.units import plural
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.hostlock import HostLock
from harness.base.processes import interruptible, run_program
from harness.base.provenance import git, has_commit
from harness.base.removal import remove_contents, remove_folder
from harness.base.scratch import Scratch
from harness.regression import version_entry
from harness.regression.baselines import CHECKS
from harness.regression.checks import INCONCLUSIVE, PRACTICAL, Check, ComparedRow, TurnsSpent, verdict_of
from harness.regression.measurement import (
    EFFICIENCY,
    STEP,
    Measurement,
    Software,
    Values,
    as_cost,
    as_slowdown,
    measurements,
)
from harness.regression.version_entry import INTERFACE
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import encode, read_point, read_run
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import LaunchFolder, SweepFolder, make_results
from harness.sweep.job_script import JobLaunch, launch_spec
from harness.sweep.launch_command import first_error
from harness.sweep.referee import run_block
from harness.sweep.submission_settings import Submission
from harness.sweep.turn_block import LaunchSpec, TurnBlock
from harness.sweep.warm_python import warm_python

# A version of the harness: what it trains, and the folder of its code, checked out and built where it is a commit.

HERE = Path(__file__).parent.parent.parent
"""The folder of the harness that runs."""
_ENTRY = "harness/regression/version_entry.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One side: `name` as a reader knows it, what it trains, and the folder of the harness that trains it.

    `commit` is what must be checked out there, empty where any will do.
    """

    name: str
    sweep: Sweep
    tree: Path = HERE
    commit: str = ""

    def environment(self) -> dict[str, str | None]:
        """Return what makes Python take the harness from `tree`, wherever it is started."""
        search_path = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        return {"PYTHONPATH": os.pathsep.join([str(self.tree), str(Path.cwd()), *search_path]), "PYTHONSAFEPATH": "1"}

    def entry(self) -> list[str]:
        """Return the command, without its arguments, by which it writes the point files of a sweep in its own code.

        Raises:
            UserError: it is of a commit from before that command.
        """
        if not (self.tree / _ENTRY).exists():
            raise UserError(
                f"cannot compare: {self.name} is of commit {self.commit[:12]}, which no other version can ask yet: "
                "save a baseline of a newer commit with `harness baseline save`"
            )
        return [sys.executable, "-m", version_entry.__name__]


def why_no_checkout(software: Software) -> str:
    """Return why the commit of `software` cannot be checked out here, an empty text where it can."""
    if not (HERE / ".git").exists():
        return "the harness here is not a git checkout"
    if not software.commit:
        return "no commit names its code"
    if software.dirty:
        return "it was measured with uncommitted changes, which no commit names"
    if not has_commit(HERE, software.commit):
        return f"commit {software.commit[:12]} is not in this checkout: fetch it (git fetch --unshallow)"
    return ""


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield a temporary folder with the harness of `commit`, its native library built.

    Raises:
        UserError: git or the build refuses.
    """
    with interruptible(), tempfile.TemporaryDirectory(prefix="harness-check-") as name:
        tree = Path(name) / commit[:12]
        added = git(HERE, "worktree", "add", "--detach", "--force", str(tree), commit)
        if added.code != 0:
            raise UserError(f"cannot compare: commit {commit[:12]} cannot be checked out: {added.last_error}")
        try:
            build = [sys.executable, "-m", "harness.comm.native.build"]
            changes = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
            built = run_program(build, limit_s=600, changes=changes)
            if built.code != 0:
                raise UserError(f"cannot compare: commit {commit[:12]} does not build: {built.last_error}")
            yield tree
        finally:
            git(HERE, "worktree", "remove", "--force", str(tree))


# What blocks of two versions in turns say: samples of each layout's step time, and the verdict on each.
#
# A block's number is the median of its rounds' log ratios, which no disturbed round moves; a second row of each layout
# has the mean over all rounds, in which a slowdown of some epochs shows. Student's t holds over blocks only: every
# start has a speed of its own, which its rounds share. The efficiency is told and does not decide: it falls where a
# step on more ranks became slower, which those rows find, or one on fewest ranks faster, which is no regression.

MEAN = ", mean of all rounds"
LOOKS = (3, 4, 6, 8, 12, 16)
"""The numbers of blocks after which a verdict is asked for; an interval over blocks needs 3."""
ERROR = 0.025  # on either side, over all rows and looks of a check
SIDES = ("old", "new")


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSample:
    """One quantity over blocks: logarithms of the new version's time, or inverse efficiency, over the old one's.

    `blocks` [blocks] are judged, `rounds` [rounds of all blocks] must bear them out: by their median, or by their mean
    where the quantity is one of all rounds. `values` are what a reader sees of the old and the new version.
    """

    quantity: str
    layout: Layout | None
    blocks: Values
    rounds: Values
    values: tuple[float, float]
    decides: bool = True

    @property
    def is_of_all_rounds(self) -> bool:
        """Whether it is of all rounds and not of the undisturbed ones alone."""
        return self.quantity.endswith(MEAN)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsStudy:
    """What both versions train: `layouts`, fewest ranks first, and the steps of an epoch [old and new, layouts]."""

    layouts: tuple[Layout, ...]
    steps: tuple[tuple[int, ...], tuple[int, ...]]
    scaling: str = "strong"

    @property
    def others(self) -> list[int]:
        """The places of the layouts that have an efficiency over the first one."""
        return [place for place, layout in enumerate(self.layouts) if layout.ranks != self.layouts[0].ranks]

    def efficiency(self, seconds: Values) -> float:
        """Return the geometric mean of the efficiencies of `others`, `seconds` [layouts] being those of an epoch."""
        ranks = np.array([self.layouts[place].ranks / self.layouts[0].ranks for place in self.others])
        ideal = ranks if self.scaling == "strong" else np.ones(len(ranks))
        return float(np.exp(np.mean(np.log(seconds[0] / seconds[self.others] / ideal))))


def block_samples(blocks: Sequence[pd.DataFrame], study: TurnsStudy) -> tuple[BlockSample, ...]:
    """Return the samples of `blocks`: the turns (see `turn_block.BlockEnd`) of launches called ``old-0``, ``new-0``...

    The number is the layout's place. A block whose launches share no round is left out.
    """
    candidates = []
    for place in range(len(study.layouts)):
        candidates.append(_undisturbed_sample(blocks, study, place))
        candidates.append(_sample_of_all_rounds(blocks, study, place))
    if study.others:
        candidates.append(_efficiency_sample(blocks, study))
    return tuple(sample for sample in candidates if sample is not None)


def _undisturbed_sample(blocks: Sequence[pd.DataFrame], study: TurnsStudy, place: int) -> BlockSample | None:
    """Return the medians of the undisturbed rounds of the layout at `place`, None where no block has such a round."""
    rounds = _step_seconds(blocks, [place])
    if not rounds:
        return None
    costs = [_log_costs(seconds, study, [place])[:, 0] for seconds in rounds]
    old, new = np.median([np.median(seconds[..., 0], axis=0) for seconds in rounds], axis=0)
    return BlockSample(
        quantity=STEP,
        layout=study.layouts[place],
        blocks=np.array([np.median(cost) for cost in costs]),
        rounds=np.concatenate(costs),
        values=(float(old), float(new)),
    )


def _sample_of_all_rounds(blocks: Sequence[pd.DataFrame], study: TurnsStudy, place: int) -> BlockSample | None:
    """Return Winsor's means of all rounds of the layout at `place`, None where no block has a round."""
    rounds = _step_seconds(blocks, [place], disturbed=True)
    if not rounds:
        return None
    costs = [winsorise(_log_costs(seconds, study, [place])[:, 0]) for seconds in rounds]
    old, new = np.median([np.mean(seconds[..., 0], axis=0) for seconds in rounds], axis=0)
    return BlockSample(
        quantity=STEP + MEAN,
        layout=study.layouts[place],
        blocks=np.array([np.mean(cost) for cost in costs]),
        rounds=np.concatenate(costs),
        values=(float(old), float(new)),
    )


def _efficiency_sample(blocks: Sequence[pd.DataFrame], study: TurnsStudy) -> BlockSample | None:
    """Return the efficiency of the curve in undisturbed rounds that all layouts share, which decides nothing."""
    places = range(len(study.layouts))
    rounds = _step_seconds(blocks, places)
    if not rounds:
        return None
    costs = [_log_costs(seconds, study, places) for seconds in rounds]
    curves = [cost[:, study.others].mean(axis=1) - cost[:, 0] for cost in costs]
    steps = np.array(study.steps, dtype=float)
    epoch_seconds = np.median([np.median(seconds, axis=0) for seconds in rounds], axis=0) * steps
    return BlockSample(
        quantity=EFFICIENCY,
        layout=None,
        blocks=np.array([np.median(curve) for curve in curves]),
        rounds=np.concatenate(curves),
        values=(study.efficiency(epoch_seconds[0]), study.efficiency(epoch_seconds[1])),
        decides=False,
    )


def _step_seconds(blocks: Sequence[pd.DataFrame], places: Iterable[int], *, disturbed: bool = False) -> list[Values]:
    """Return the seconds of a step [rounds, old and new, places] of every block with rounds of both at all `places`."""
    names = [f"{side}-{place}" for side in SIDES for place in places]
    seconds_of_blocks = []
    for turns in blocks:
        counted = turns if disturbed else undisturbed_rounds(turns, alike=False)
        steps = block_steps(counted).reindex(columns=names).dropna()
        if len(steps):
            seconds_of_blocks.append(steps.to_numpy().reshape(len(steps), 2, len(names) // 2))
    return seconds_of_blocks


def _log_costs(seconds: Values, study: TurnsStudy, places: Iterable[int]) -> Values:
    """Return the logarithm of the new version's epoch over the old one's [rounds, places]."""
    steps = np.array(study.steps, dtype=float)[:, list(places)]
    costs: Values = np.log(seconds[:, 1] / seconds[:, 0]) + np.log(steps[1] / steps[0])
    return costs


def judge_samples(samples: Sequence[BlockSample], practical: float) -> tuple[ComparedRow, ...]:
    """Return the row of each of `samples`, all of one check; those that decide share the error, and `LOOKS` do.

    It is shared by Bonferroni's inequality.

    A regression needs three things: Student's bound over blocks above 0, the bound over all rounds above 0, and an
    estimate above the `practical` slowdown. A pass needs Student's upper bound below it, where a slowdown that is sure
    is called small. As a check passes only by all its rows, the upper bound of each has the whole error of a look
    (Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24, 1982).
    """
    rows = sum(sample.decides for sample in samples)
    return tuple(_row(sample, rows, practical) for sample in samples)


def _row(sample: BlockSample, rows: int, practical: float) -> ComparedRow:
    """Return the row of `sample`, which shares the error of a look with all `rows` that decide."""
    look_level = 1 - 2 * ERROR / len(LOOKS)
    row_level = 1 - 2 * ERROR / len(LOOKS) / rows
    shared = mean_over_blocks(sample.blocks, level=row_level)
    alone = mean_over_blocks(sample.blocks, level=look_level)
    interval = None
    verdict = INCONCLUSIVE
    if shared and alone:
        upper = alone.interval.high
        interval = Interval(low=as_slowdown(shared.interval.low, True), high=as_slowdown(upper, True))
        verdict = verdict_of(
            shared.mean,
            shared.interval,
            as_cost(practical, True),
            upper=upper,
            rounds=_bounds_of_rounds(sample, row_level),
        )
    return ComparedRow(
        quantity=sample.quantity,
        layout=sample.layout,
        decides=sample.decides,
        values=sample.values,
        launches=(len(sample.blocks), len(sample.blocks)),
        slowdown=as_slowdown(float(sample.blocks.mean()), True),
        interval=interval,
        verdict=verdict,
    )


def _bounds_of_rounds(sample: BlockSample, level: float) -> Interval:
    """Return the bounds over all rounds: of their mean where the sample is one of all rounds, else of their median."""
    mean = mean_over_blocks(sample.rounds, level=level) if sample.is_of_all_rounds else None
    interval = mean.interval if mean else median_interval(sample.rounds, level=level)
    return interval or Interval(low=-np.inf, high=np.inf)


_TRIES = 2  # of a block
_BLOCK_S = 20.0  # in turns: its start takes as long
_PREPARATION_S = 7 * 86400.0  # a data set may have to be fetched


@dataclass(frozen=True, kw_only=True, slots=True)
class _PlannedLaunch:
    """A launch of a block: the side whose version trains it, its point file, and the point."""

    side: str
    point_file: Path
    point: Point


@dataclass(frozen=True, kw_only=True, slots=True)
class _BlockResult:
    """The turns of a block that was trained, or why it does not count."""

    turns: pd.DataFrame | None
    reason: str = ""


class VersionDuel:
    """Blocks of an old and a new version, added until the budget is spent; their records are kept in `folder`."""

    def __init__(self, old: Version, new: Version, *, folder: Path, data_dir: Path | None, budget_s: float) -> None:
        self._versions = dict(zip(SIDES, (old, new), strict=True))
        self._folder = folder.resolve()
        self._data_dir = str(data_dir.resolve()) if data_dir else ""
        self._begin = time.monotonic()
        self._budget_s = budget_s
        self._longest_s = 0.0
        self._scheduler = Submission().open(oversubscribe=old.sweep.oversubscribe)
        self._points: dict[str, list[tuple[Path, Point]]] = {}
        self._epochs = 0
        self.python = sys.executable
        self.blocks: list[pd.DataFrame] = []

    def spent(self) -> TurnsSpent:
        """Return what was measured so far."""
        rounds = sum(block["round"].nunique() for block in self.blocks)
        minutes = (time.monotonic() - self._begin) / 60
        return TurnsSpent(blocks=len(self.blocks), rounds=rounds, minutes=minutes, epochs=self._epochs)

    def prepare(self) -> None:
        """Have each version write its point files, in its own code, and prepare its data.

        Raises:
            UserError: a version refuses, a layout cannot run here, or the commit does not know turns.
        """
        for side, version in self._versions.items():
            for layout in version.sweep.layouts:
                if reason := self._scheduler.refusal(layout):
                    raise UserError(f"cannot compare: {layout} cannot run here: it {reason}")
            entry = version.entry()
            folder = self._folder / side
            points = folder / "points"
            points.mkdir(parents=True)
            SweepFolder(folder).logs.mkdir()
            sweep_file = folder / "points.json"
            write_atomic(sweep_file, encode(replace(version.sweep, repeats=LOOKS[-1])))
            command = [*entry, str(INTERFACE), str(sweep_file), str(points)]
            if self._data_dir:
                command.append(self._data_dir)
            reply = run_program(command, limit_s=_PREPARATION_S, changes=version.environment())
            if reply.code != 0:
                raise UserError(f"cannot compare: {version.name} does not run: {reply.last_error}")
            self._points[side] = [(path, read_point(path)) for path in points.glob("*.json")]

    def add_block(self, say: Callable[[str], None]) -> bool:
        """Train both versions on every layout in turns; return False, having done nothing, when the time is over.

        Raises:
            UserError: a version does not run, twice, or cannot be compared.
        """
        if not self._points:
            self.prepare()
        begin = time.monotonic()
        if begin - self._begin + self._longest_s > self._budget_s:
            return False
        turns = self._train_until_it_counts(say)
        if not self.blocks and self._lengthen(float(turns["at_s"].max() - turns["at_s"].min()), say):
            return self.add_block(say)
        self.blocks.append(turns)
        self._longest_s = max(self._longest_s, time.monotonic() - begin)
        return True

    def _train_until_it_counts(self, say: Callable[[str], None]) -> pd.DataFrame:
        """Return the turns of the next block, which is trained again where it does not count."""
        for tries_left in reversed(range(_TRIES)):
            result = self._train(len(self.blocks), say)
            if result.turns is not None:
                return result.turns
            if tries_left:
                say(f"block {len(self.blocks) + 1} is started again: {result.reason}")
        raise UserError(f"cannot compare: {result.reason}")

    def _lengthen(self, seconds: float, say: Callable[[str], None]) -> bool:
        """Have launches of more epochs trained where the turns of a block take less time than its start; say so."""
        factor = math.ceil(_BLOCK_S / max(seconds, 0.1))
        workload = self._versions[SIDES[0]].sweep.workload
        if seconds >= _BLOCK_S / 2 or workload.script or workload.seconds is not None:
            return False
        longer = workload.epochs * factor
        say(f"{plural(workload.epochs, 'epoch')} took {seconds:.0f} s in turns: launches of {longer} are compared")
        for side, version in self._versions.items():
            more = replace(version.sweep.workload, epochs=longer)
            self._versions[side] = replace(version, sweep=replace(version.sweep, workload=more))
            remove_contents(self._folder / side)
        self._points = {}
        self._epochs = longer
        return True

    def _train(self, number: int, say: Callable[[str], None]) -> _BlockResult:
        """Train one block."""
        launches = self._planned_launches(number)
        scratch = Scratch()
        specs = [self._launch_spec(name, launch, scratch.variables) for name, launch in launches.items()]
        on_gpus = any(launch.point.layout.gpus_per_rank for launch in launches.values())
        name = f"{self._folder.name}-{number}-{time.time_ns()}"
        block = TurnBlock(name=name, launches=tuple(specs), on_gpus=on_gpus)
        try:
            with HostLock().held("a check", say) as handles:
                end = run_block(block, pass_fds=(*handles, *scratch.handles))
        finally:
            scratch.close()
        end.turns.to_parquet(self._folder / f"turns-{number}.parquet", index=False)
        for name, launch in launches.items():
            reason = self._why_not_counted(launch, end.codes[name])
            if reason:
                return _BlockResult(turns=None, reason=reason)
        return _BlockResult(turns=end.turns)

    def _planned_launches(self, number: int) -> dict[str, _PlannedLaunch]:
        """Return the launches of block `number`: ``old-0`` is the old version's on the first layout."""
        launches = {}
        layouts = self._versions[SIDES[0]].sweep.layouts
        for side in SIDES:
            for path, point in self._points[side]:
                if point.repeat == number:
                    name = f"{side}-{layouts.index(point.layout)}"
                    launches[name] = _PlannedLaunch(side=side, point_file=path, point=point)
        return launches

    def _why_not_counted(self, launch: _PlannedLaunch, code: int | None) -> str:
        """Return why a launch that ended with exit code `code` does not count, an empty text where it does."""
        version = self._versions[launch.side]
        record = self._folder / launch.side / launch.point.folder
        if code or not LaunchFolder(record).is_recorded:
            log = SweepFolder(self._folder / launch.side).log(launch.point.folder)
            why = first_error(log.read_text(errors="replace")) or f"exit code {code}, see '{log}'"
            return f"{version.name} does not run on {launch.point.layout}: {why}"
        invalid = read_run(record).invalid
        return f"a launch of {version.name} does not count: {invalid[0]}" if invalid else ""

    def _launch_spec(self, name: str, launch: _PlannedLaunch, scratch: Mapping[str, str]) -> LaunchSpec:
        version = self._versions[launch.side]
        record = self._folder / launch.side / launch.point.folder
        remove_folder(record, below=self._folder)  # of a block that did not count
        layout = launch.point.layout
        job_launch = JobLaunch(
            name=name,
            layout=layout,
            launcher=self._scheduler.launcher(layout),
            point_file=str(launch.point_file),
            record=str(record),
        )
        spec = launch_spec(job_launch, launch.point, self._folder / launch.side, self._data_dir or None)
        changes = {
            **self._scheduler.environment(layout),
            **scratch,
            **spec.changes,
            **version.environment(),
        }
        words = tuple(self.python if word == sys.executable else word for word in spec.words)
        return replace(spec, words=words, changes=changes)

    def check(self, practical: float) -> Check:
        """Return the verdicts by the blocks so far.

        Raises:
            UserError: another state of the code ran than was meant, or the rows of an epoch differ.
        """
        old, new = (self._measured(side) for side in SIDES)
        layouts = self._versions[SIDES[0]].sweep.layouts
        for layout in layouts:
            old_rows = old.of(layout)[0].rows
            new_rows = new.of(layout)[0].rows
            if old_rows != new_rows:
                raise UserError(
                    f"cannot compare: an epoch of {old.label} has {old_rows:,} rows, of {new.label} {new_rows:,}: let "
                    "both train on the same"
                )
        old_steps, new_steps = (self._steps_per_epoch(side) for side in SIDES)
        study = TurnsStudy(layouts=layouts, steps=(old_steps, new_steps), scaling=old.scaling)
        rows = judge_samples(block_samples(self.blocks, study), practical)
        return Check(reference=old, current=new, practical=practical, rows=rows, spent=self.spent())

    def _steps_per_epoch(self, side: str) -> tuple[int, ...]:
        """Return the steps of an epoch on each layout, from the records of the first block."""
        steps = {}
        for _, point in self._points[side]:
            if point.repeat == 0:
                steps[point.layout] = read_run(self._folder / side / point.folder).steps_per_epoch
        return tuple(steps[layout] for layout in self._versions[side].sweep.layouts)

    def _measured(self, side: str) -> Measurement:
        version = self._versions[side]
        measured = measurements(load_sweep(self._folder / side, every_code=True), version.name)
        if len(measured) != 1 or version.commit not in ("", measured[0].software.commit):
            states = ", ".join(measurement.state for measurement in measured)
            raise UserError(
                f"cannot compare: {version.name} ran as {states}: do not change the code while a check runs"
            )
        return measured[0]


def run_duel(duel: VersionDuel, *, practical: float = PRACTICAL, say: Callable[[str], None]) -> Check:
    """Return the check of the new version against the old one, with more blocks while it is inconclusive.

    Raises:
        UserError: a version does not run, or the budget was too small for a single block.
    """
    result: Check | None = None
    with interruptible(), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        duel.prepare()  # what is refused is refused before TensorFlow is imported
        duel.python = stack.enter_context(warm_python(Path(folder)))
        for look in LOOKS:
            in_time = True
            while in_time and len(duel.blocks) < look:
                if in_time := duel.add_block(say):
                    say(str(duel.spent()))
            if not duel.blocks:
                raise UserError("no block was measured: give a larger BUDGET")
            result = duel.check(practical)
            if result.verdict != INCONCLUSIVE:
                return result
            if not in_time:
                say(f"the budget of time is spent: {plural(len(duel.blocks), 'block')}")
                return result
    assert result is not None
    return result


def checks_folder(results: Path) -> Path:
    """Return a new folder below `results` for the records of a check, named by the time."""
    make_results(results)
    return results / CHECKS / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
