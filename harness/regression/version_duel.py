"""Two versions in turns: blocks of both on every layout, until the verdict is sure or the budget is spent.

The versions are two commits of the harness, an earlier one checked out and built beside, or what a user names. Their
processes are forked from one Python that has imported TensorFlow: most of a block's time would be that.
"""

import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from harness.analysis.read_results import load_sweep
from harness.analysis.units import plural
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.hostlock import HostLock
from harness.base.processes import interruptible, run_program
from harness.base.removal import remove_contents, remove_folder
from harness.base.scratch import Scratch
from harness.regression.baselines import CHECKS
from harness.regression.checks import INCONCLUSIVE, PRACTICAL, Check, TurnsSpent
from harness.regression.measurement import Measurement, measurements
from harness.regression.version_checkout import Version
from harness.regression.version_entry import INTERFACE
from harness.regression.version_samples import LOOKS, SIDES, TurnsStudy, block_samples, judge_samples
from harness.schema.point import Point
from harness.schema.record import encode, read_point, read_run
from harness.schema.sweep_folder import LaunchFolder, SweepFolder, make_results
from harness.sweep.job_script import launch_spec
from harness.sweep.job_template import JobLaunch
from harness.sweep.launch_output import first_error
from harness.sweep.referee import run_block
from harness.sweep.submission_settings import Submission
from harness.sweep.turn_block import LaunchSpec, TurnBlock
from harness.sweep.warm_python import warm_python

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
