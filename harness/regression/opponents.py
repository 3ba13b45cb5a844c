"""Old and new in turns: blocks of both versions on every layout, until the verdict is sure or the budget is spent.

The versions are two commits of the harness, an earlier one checked out and built beside, or what a user names. Their
processes are forked from one Python that has imported TensorFlow: most of a block's time would be that.

A block's number is the median of its rounds' log ratios, which no disturbed round moves; a second row of each layout
has the mean over all rounds, in which a slowdown of some epochs shows. Student's t holds over blocks only: every start
has a speed of its own, which its rounds share. The efficiency is told and does not decide: it falls where a step on
more ranks became slower, which those rows find, or one on fewest ranks faster, which is no regression.
"""

import contextlib
import functools
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom
from scipy.stats import t as student

from harness.analysis.numbers import plural
from harness.analysis.read_results import load_sweep
from harness.analysis.stats import Interval
from harness.analysis.turn_blocks import step_table, undisturbed_rounds, winsorise
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.hostlock import HostLock
from harness.base.processes import ask, interruptible
from harness.base.provenance import git, has_commit
from harness.base.scratch import Scratch
from harness.regression.baselines import CHECKS, Measurement, Software, measurements
from harness.regression.checks import (
    EFFICIENCY,
    INCONCLUSIVE,
    PRACTICAL,
    STEP,
    Check,
    ComparedRow,
    TurnsSpent,
    Values,
    as_cost,
    as_slowdown,
    verdict_of,
)
from harness.schema.record import encode, read_point, read_run
from harness.schema.sweep import Layout, Point, Sweep
from harness.schema.sweep_folder import LaunchFolder, SweepFolder
from harness.schema.workload import is_script
from harness.sweep.job_script import launch_spec
from harness.sweep.job_template import JobLaunch
from harness.sweep.launch_output import first_error
from harness.sweep.referee import run_block
from harness.sweep.submission import Submission
from harness.sweep.turn_block import LaunchSpec, TurnBlock
from harness.sweep.warm_python import warm_python

MEAN = ", mean of all rounds"
LOOKS = (3, 4, 6, 8, 12, 16)  # blocks
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsStudy:
    """What both versions train: `layouts`, fewest ranks first, and the steps of an epoch [old and new, layouts]."""

    layouts: tuple[Layout, ...]
    steps: tuple[tuple[int, ...], tuple[int, ...]]
    scaling: str = "strong"

    @property
    def others(self) -> list[int]:
        """The places of the layouts that have an efficiency over the first one."""
        return [place for place, one in enumerate(self.layouts) if one.ranks != self.layouts[0].ranks]

    def efficiency(self, seconds: Values) -> float:
        """Return the geometric mean of the efficiencies of `others`, `seconds` [layouts] being those of an epoch."""
        ranks = np.array([self.layouts[place].ranks / self.layouts[0].ranks for place in self.others])
        ideal = ranks if self.scaling == "strong" else np.ones(len(ranks))
        return float(np.exp(np.mean(np.log(seconds[0] / seconds[self.others] / ideal))))


def block_samples(blocks: Sequence[pd.DataFrame], study: TurnsStudy) -> tuple[BlockSample, ...]:
    """Return the samples of `blocks`: the turns (see `turn_block.BlockEnd`) of launches called ``old-0``, ``new-0``...

    The number is the layout's place. A block whose launches share no round is left out.
    """
    found = []
    steps = np.array(study.steps, dtype=float)
    work = np.log(steps[1] / steps[0])
    for place, layout in enumerate(study.layouts):
        for mean in (False, True):
            rounds = [_seconds(turns, (place,), disturbed=mean)[..., 0] for turns in blocks]
            rounds = [one for one in rounds if len(one)]
            if not rounds:
                continue
            parts = [np.log(one[:, 1] / one[:, 0]) + work[place] for one in rounds]
            if mean:
                parts = [winsorise(part) for part in parts]
            middle = np.mean if mean else np.median
            old, new = np.median([middle(one, axis=0) for one in rounds], axis=0)
            found.append(
                BlockSample(
                    quantity=STEP + (MEAN if mean else ""),
                    layout=layout,
                    blocks=np.array([middle(part) for part in parts]),
                    rounds=np.concatenate(parts),
                    values=(float(old), float(new)),
                )
            )
    whole = [one for one in (_seconds(turns, range(len(study.layouts))) for turns in blocks) if len(one)]
    if study.others and whole:
        seconds = np.median([np.median(one, axis=0) for one in whole], axis=0) * steps
        costs = [np.log(one[:, 1] / one[:, 0]) + work for one in whole]
        curves = [cost[:, study.others].mean(axis=1) - cost[:, 0] for cost in costs]
        found.append(
            BlockSample(
                quantity=EFFICIENCY,
                layout=None,
                blocks=np.array([np.median(curve) for curve in curves]),
                rounds=np.concatenate(curves),
                values=(study.efficiency(seconds[0]), study.efficiency(seconds[1])),
                decides=False,
            )
        )
    return tuple(found)


def _seconds(turns: pd.DataFrame, places: Iterable[int], *, disturbed: bool = False) -> Values:
    """Return the seconds of a step [rounds, old and new, places] of the rounds in which both had turns at `places`."""
    names = [f"{side}-{place}" for side in SIDES for place in places]
    counted = turns if disturbed else undisturbed_rounds(turns, alike=False)
    steps = step_table(counted).reindex(columns=names).dropna()
    found: Values = steps.to_numpy().reshape(len(steps), 2, len(names) // 2)
    return found


def judge(samples: Sequence[BlockSample], practical: float) -> tuple[ComparedRow, ...]:
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
    whole = ERROR / len(LOOKS)
    chance = whole / rows
    blocks, estimate = sample.blocks, float(sample.blocks.mean())
    bounds = _student(blocks, chance) if len(blocks) >= LOOKS[0] else None
    verdict, interval = INCONCLUSIVE, None
    if bounds is not None:
        interval = Interval(low=bounds.low, high=_student(blocks, whole).high)
        borne = _student(sample.rounds, chance) if sample.quantity.endswith(MEAN) else _exact(sample.rounds, chance)
        verdict = verdict_of(estimate, bounds, as_cost(practical, True), upper=interval.high, borne=borne)
    return ComparedRow(
        quantity=sample.quantity,
        layout=sample.layout,
        decides=sample.decides,
        values=sample.values,
        launches=(len(blocks), len(blocks)),
        slowdown=as_slowdown(estimate, True),
        interval=interval
        and Interval(low=as_slowdown(interval.low, relative=True), high=as_slowdown(interval.high, relative=True)),
        verdict=verdict,
    )


def _student(values: Values, chance: float) -> Interval:
    """Return Student's bounds of the mean, each wrong with `chance`."""
    reach = _quantile(chance, len(values) - 1) * float(values.std(ddof=1)) / len(values) ** 0.5
    return Interval(low=float(values.mean()) - reach, high=float(values.mean()) + reach)


def _exact(values: Values, chance: float) -> Interval:
    """Return bounds of the median, each wrong with `chance` at most: order statistics, by the binomial distribution."""
    place = _place(chance, len(values))
    if place < 1:
        return Interval(low=-np.inf, high=np.inf)
    ordered = np.sort(values)
    return Interval(low=float(ordered[place - 1]), high=float(ordered[-place]))


@functools.cache
def _quantile(chance: float, freedom: int) -> float:
    return float(student.isf(chance, freedom))


@functools.cache
def _place(chance: float, size: int) -> int:
    return int(binom.ppf(chance, size, 0.5))


HERE = Path(__file__).parent.parent.parent


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
        given = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        return {"PYTHONPATH": os.pathsep.join([str(self.tree), str(Path.cwd()), *given]), "PYTHONSAFEPATH": "1"}


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
            built = ask(build, limit_s=600, changes=changes)
            if built.code != 0:
                raise UserError(f"cannot compare: commit {commit[:12]} does not build: {built.last_error}")
            yield tree
        finally:
            git(HERE, "worktree", "remove", "--force", str(tree))


_TRIES = 2  # of a block
_BLOCK_S = 20.0  # in turns: its start takes as long

# Writes the point files of one version into FOLDER and brings its data into the cache: SWEEP_FILE FOLDER DATA_DIR
# (empty: none is given). It runs apart from this module so that `harness` is the version on PYTHONPATH.
_POINTS = """
import sys
from pathlib import Path
from harness.base.errors import UserError
from harness.datasets import locate, prepare
from harness.schema.record import decode, encode
from harness.schema.sweep import Sweep
from harness.sweep.plan import current

sweep_file, folder, data_dir = sys.argv[1:]
try:
    sweep = current(decode(Path(sweep_file).read_bytes(), Sweep, Path(sweep_file)))
    for number, point in enumerate(sweep.points()):
        (Path(folder) / f"{number}.json").write_bytes(encode(point))
    source = locate(sweep.workload, Path(data_dir) if data_dir else None, sweep.data_id)
    if source.kind != "script":
        prepare(source)
except UserError as error:
    sys.exit(str(error))
"""


class Opponents:
    """Blocks of an old and a new version, added until the budget is spent; their records are kept in `folder`."""

    def __init__(self, old: Version, new: Version, *, folder: Path, data_dir: Path | None, budget_s: float) -> None:
        self._versions = dict(zip(SIDES, (old, new), strict=True))
        self._folder, self._data_dir = folder.resolve(), str(data_dir.resolve()) if data_dir else ""
        self._begin, self._budget_s, self._longest = time.monotonic(), budget_s, 0.0
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
        """Let each version write its point files, in its own code, and prepare its data.

        Raises:
            UserError: a version refuses, a layout cannot run here, or the commit does not know turns.
        """
        for side, version in self._versions.items():
            for layout in version.sweep.layouts:
                if reason := self._scheduler.refusal(layout):
                    raise UserError(f"cannot compare: {layout} cannot run here: it {reason}")
            if not (version.tree / "harness/base/turns.py").exists():
                raise UserError(
                    f"cannot compare: {version.name} is of commit {version.commit[:12]}, which does not train in turns "
                    "yet: save a baseline of a newer commit with `harness baseline save`"
                )
            folder = self._folder / side
            (folder / "points").mkdir(parents=True)
            SweepFolder(folder).logs.mkdir()
            file = folder / "points.json"
            write_atomic(file, encode(replace(version.sweep, repeats=LOOKS[-1])))
            command = [sys.executable, "-c", _POINTS, str(file), str(folder / "points"), self._data_dir]
            reply = ask(command, limit_s=7 * 86400.0, changes=version.environment())
            if reply.code != 0:
                raise UserError(f"cannot compare: {version.name} does not run: {reply.last_error}")
            self._points[side] = [(path, read_point(path)) for path in (folder / "points").glob("*.json")]

    def add_block(self, say: Callable[[str], None]) -> bool:
        """Train both versions on every layout in turns; return False, having done nothing, when the time is over.

        Raises:
            UserError: a version does not run, twice, or cannot be compared.
        """
        if not self._points:
            self.prepare()
        begin = time.monotonic()
        if begin - self._begin + self._longest > self._budget_s:
            return False
        for left in reversed(range(_TRIES)):
            turns, why = self._train(len(self.blocks), say)
            if turns is not None:
                break
            if not left:
                raise UserError(f"cannot compare: {why}")
            say(f"block {len(self.blocks) + 1} is started again: {why}")
        assert turns is not None
        if not self.blocks and self._lengthen(float(turns["at_s"].max() - turns["at_s"].min()), say):
            return self.add_block(say)
        self.blocks.append(turns)
        self._longest = max(self._longest, time.monotonic() - begin)
        return True

    def _lengthen(self, seconds: float, say: Callable[[str], None]) -> bool:
        """Have launches of more epochs trained where the turns of a block take less time than its start; say so."""
        factor = math.ceil(_BLOCK_S / max(seconds, 0.1))
        workload = self._versions[SIDES[0]].sweep.workload
        if seconds >= _BLOCK_S / 2 or is_script(workload) or workload.seconds is not None:
            return False
        longer = workload.epochs * factor
        say(f"{plural(workload.epochs, 'epoch')} took {seconds:.0f} s in turns: launches of {longer} are compared")
        for side, version in self._versions.items():
            more = replace(version.sweep.workload, epochs=longer)
            self._versions[side] = replace(version, sweep=replace(version.sweep, workload=more))
            shutil.rmtree(self._folder / side)
        self._points, self._epochs = {}, longer
        return True

    def _train(self, number: int, say: Callable[[str], None]) -> tuple[pd.DataFrame | None, str]:
        """Return the turns of one block, or why it does not count."""
        sets = {
            f"{side}-{place}": (side, path, point)
            for side in SIDES
            for place, layout in enumerate(self._versions[SIDES[0]].sweep.layouts)
            for path, point in self._points[side]
            if point.layout == layout and point.repeat == number
        }
        scratch = Scratch()
        block = TurnBlock(
            name=f"{self._folder.name}-{number}-{time.time_ns()}",
            launches=tuple(self._launch_spec(name, *parts, scratch.variables) for name, parts in sets.items()),
        )
        try:
            with HostLock().held(f"a check in '{self._folder}'", say) as handles:
                end = run_block(block, pass_fds=(*handles, *scratch.handles))
        finally:
            scratch.close()
        end.turns.to_parquet(self._folder / f"turns-{number}.parquet", index=False)
        for name, (side, _, point) in sets.items():
            record, who = self._folder / side / point.folder, self._versions[side].name
            if end.codes[name] or not LaunchFolder(record).is_recorded:
                log = SweepFolder(self._folder / side).log(point.folder)
                why = first_error(log.read_text(errors="replace")) or f"exit code {end.codes[name]}, see '{log}'"
                return None, f"{who} does not run on {point.layout}: {why}"
            if invalid := read_run(record).invalid:
                return None, f"a launch of {who} does not count: {invalid[0]}"
        return end.turns, ""

    def _launch_spec(self, name: str, side: str, path: Path, point: Point, scratch: Mapping[str, str]) -> LaunchSpec:
        version, record = self._versions[side], self._folder / side / point.folder
        shutil.rmtree(record, ignore_errors=True)  # of a block that did not count
        launch = JobLaunch(
            name=name,
            layout=point.layout,
            launcher=self._scheduler.launcher(point.layout),
            point_file=str(path),
            record=str(record),
        )
        made = launch_spec(launch, point, self._folder / side, self._data_dir or None)
        environment = self._scheduler.environment(point.layout)
        changes = {**environment, **scratch, **made.changes, **version.environment()}
        words = tuple(self.python if word == sys.executable else word for word in made.words)
        return replace(made, words=words, changes=changes)

    def check(self, practical: float) -> Check:
        """Return the verdicts by the blocks so far.

        Raises:
            UserError: another state of the code ran than was meant, or the rows of an epoch differ.
        """
        old, new = (self._measured(side) for side in SIDES)
        layouts = self._versions[SIDES[0]].sweep.layouts
        for layout in layouts:
            rows = [side.of(layout)[0].rows for side in (old, new)]
            if rows[0] != rows[1]:
                raise UserError(
                    f"cannot compare: an epoch of {old.label} has {rows[0]:,} rows, of {new.label} {rows[1]:,}: let "
                    "both train on the same"
                )
        steps = {
            (side, point.layout): read_run(self._folder / side / point.folder).steps_per_epoch
            for side in SIDES
            for _, point in self._points[side]
            if point.repeat == 0
        }
        before, now = (tuple(steps[side, layout] for layout in self._versions[side].sweep.layouts) for side in SIDES)
        study = TurnsStudy(layouts=layouts, steps=(before, now), scaling=old.scaling)
        rows_found = judge(block_samples(self.blocks, study), practical)
        return Check(reference=old, current=new, practical=practical, rows=rows_found, spent=self.spent())

    def _measured(self, side: str) -> Measurement:
        version = self._versions[side]
        found = measurements(load_sweep(self._folder / side, every_code=True), version.name)
        if len(found) != 1 or version.commit not in ("", found[0].software.commit):
            ran = ", ".join(one.state for one in found)
            raise UserError(f"cannot compare: {version.name} ran as {ran}: do not change the code while a check runs")
        return found[0]


def decide(opponents: Opponents, *, practical: float = PRACTICAL, say: Callable[[str], None]) -> Check:
    """Return the check of the new version against the old one, with more blocks while it is inconclusive.

    Raises:
        UserError: a version does not run, or the budget was too small for a single block.
    """
    result: Check | None = None
    with interruptible(), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        opponents.prepare()  # what is refused is refused before TensorFlow is imported
        opponents.python = stack.enter_context(warm_python(Path(folder)))
        for look in LOOKS:
            in_time = True
            while in_time and len(opponents.blocks) < look:
                if in_time := opponents.add_block(say):
                    say(str(opponents.spent()))
            if not opponents.blocks:
                raise UserError("no block was measured: give a larger BUDGET")
            result = opponents.check(practical)
            if result.verdict != INCONCLUSIVE:
                return result
            if not in_time:
                say(f"the budget of time is spent: {plural(len(opponents.blocks), 'block')}")
                return result
    assert result is not None
    return result


def checks_folder(results: Path) -> Path:
    """Return a new folder below `results` for the records of a check, named by the time."""
    return results / CHECKS / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
