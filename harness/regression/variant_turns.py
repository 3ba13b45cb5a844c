"""Variants in turns: blocks of all of them on every layout, until every ratio is sure or the budget is spent.

This is the one engine for comparisons that train. Whatever the variants differ in, the sets of ranks of all are
resident on the same cores and train in turns (`harness.sweep.referee`). Most of a block's time would be the import of
TensorFlow: ranks are forked from Pythons that have it imported already, one for each Python and environment, where all
variants allow it.
"""

import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from harness.analysis.read_results import load_sweep
from harness.analysis.units import plural
from harness.base.cores import memory_limit
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.hostlock import HostLock
from harness.base.processes import interruptible, run_program
from harness.base.removal import remove_contents, remove_folder
from harness.base.scratch import Scratch
from harness.base.setting_names import setting
from harness.regression import variant_launcher
from harness.regression.change_threshold import DEFAULT_THRESHOLD
from harness.regression.launch_comparison import OPEN, ComparedRow
from harness.regression.measurement import Measurement, measurements
from harness.regression.variant_launcher import VariantLaunch
from harness.regression.variant_samples import LOOKS, TurnsStudy, block_samples, judge_samples, launch_name
from harness.regression.variants import HERE, Variant, build_native
from harness.regression.version_entry import INTERFACE
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import decode, encode, read_point, read_run
from harness.schema.sweep_folder import LaunchFolder, SweepFolder, make_results
from harness.sweep.job_script import JobLaunch, launch_spec
from harness.sweep.launch_command import LaunchCommand, first_error
from harness.sweep.referee import run_block
from harness.sweep.turn_block import LaunchSpec, TurnBlock
from harness.sweep.warm_python import warm_python

COMPARISONS = "comparisons"
"""The folder, below the results, of the records of comparisons."""
_TRIES = 2  # of a block
BLOCK_S = 20.0  # in turns: its start takes as long
_PREPARATION_S = 7 * 86400.0  # a data set may have to be fetched
_PROCESS_BYTES = 600 * 2**20  # a rank, with its network and rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a comparison took. `epochs` are those of its launches where they are more than was asked for, else 0."""

    blocks: int
    rounds: int
    minutes: float
    epochs: int = 0

    def __str__(self) -> str:
        blocks = plural(self.blocks, "block")
        rounds = plural(self.rounds, "round")
        longer = f", launches of {self.epochs} epochs" if self.epochs else ""
        return f"{blocks}, {rounds}, {self.minutes:.1f} minutes{longer}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The `variants` that trained in turns, what was `measured` of each, and the `rows` of each but the first.

    `spent` is what it took; a difference below `threshold` is none. `folder` has the records, a folder for each variant
    by its number.
    """

    variants: tuple[Variant, ...]
    measured: tuple[Measurement, ...]
    rows: tuple[tuple[ComparedRow, ...], ...]
    spent: Spent
    threshold: float
    folder: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folder of each variant's records."""
        return tuple(self.folder / str(number) for number in range(len(self.variants)))

    @property
    def is_sure(self) -> bool:
        """Whether each variant has rows that decide, and none of them is open."""
        for rows in self.rows:
            meanings = [row.verdict for row in rows if row.decides]
            if not meanings or OPEN in meanings:
                return False
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class _PlannedLaunch:
    """A launch: the number of its variant, its point file, and the point, whose repeat is the number of its block."""

    variant: int
    point_file: Path
    point: Point


class VariantTurns:
    """Blocks of variants, added until the budget is spent; their records are kept in `folder`."""

    def __init__(self, variants: Sequence[Variant], *, folder: Path, data_dir: Path | None, budget_s: float) -> None:
        self.variants = list(variants)
        self._folder = folder.resolve()
        self._data_dir = str(data_dir.resolve()) if data_dir else ""
        self._begin = math.nan  # of the first block (monotonic s): what is built before is not measured
        self._budget_s = budget_s
        self._longest_s = 0.0
        self._epochs = 0
        self._launches: list[VariantLaunch] = []
        self._planned: list[_PlannedLaunch] = []
        self._programs = [variant.python for variant in variants]
        self.blocks: list[pd.DataFrame] = []

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts on which every variant trains."""
        return self.variants[0].sweep.layouts

    def spent(self) -> Spent:
        """Return what was measured so far."""
        rounds = sum(block["round"].nunique() for block in self.blocks)
        minutes = (time.monotonic() - self._begin) / 60  # from the first block on
        return Spent(blocks=len(self.blocks), rounds=rounds, minutes=minutes, epochs=self._epochs)

    def prepare(self, say: Callable[[str], None]) -> None:
        """Ask each variant, in its own Python and environment, how its ranks start; build what it needs.

        Raises:
            UserError: a variant or this machine refuses, the commit does not know turns, or memory does not hold all.
        """
        self._check_memory()
        for variant in self.variants:
            variant.entry()
        with tempfile.TemporaryDirectory() as name:
            sweep_file = Path(name) / "variant.json"
            for variant in self.variants:
                write_atomic(sweep_file, encode(variant.sweep))
                words = [variant.python, "-m", variant_launcher.__name__, str(sweep_file)]
                reply = run_program(words, changes=variant.environment(HERE))
                if reply.code != 0:
                    raise UserError(f"cannot compare: {variant.name}: {reply.last_error}")
                launch = decode(reply.out.encode(), VariantLaunch, sweep_file)
                self._launches.append(launch)
        try:
            self.write_points()
        except UserError:
            remove_contents(self._folder)  # nothing was measured
            raise
        for variant in self.variants:
            if variant.prefix:
                continue
            if variant.python != sys.executable:
                say(f"{variant.name}: the C++ part is built for it, which takes 10 s the first time")
            note = build_native(variant)
            if note:
                say(f"{variant.name}: {note}")

    def _check_memory(self) -> None:
        processes = len(self.variants) * sum(layout.ranks for layout in self.layouts)
        most = memory_limit() // _PROCESS_BYTES
        if processes > most:
            raise UserError(
                f"{plural(len(self.variants), 'variant')} on these layouts are {processes} ranks at once, and memory "
                f"holds about {most}: compare fewer variants, or on fewer layouts"
            )

    def write_points(self) -> None:
        """Have each variant write its point files, in its own code, and prepare its data.

        Raises:
            UserError: a variant refuses.
        """
        self._planned = []
        for number, variant in enumerate(self.variants):
            folder = self._folder / str(number)
            points = folder / "points"
            points.mkdir(parents=True)
            SweepFolder(folder).logs.mkdir()
            sweep_file = folder / "points.json"
            write_atomic(sweep_file, encode(replace(variant.sweep, repeats=LOOKS[-1])))
            command = [*variant.entry(), str(INTERFACE), str(sweep_file), str(points)]
            if self._data_dir:
                command.append(self._data_dir)
            reply = run_program(command, limit_s=_PREPARATION_S, changes=variant.environment())
            if reply.code != 0:
                raise UserError(f"cannot compare: {variant.name} does not run: {reply.last_error}")
            written = [
                _PlannedLaunch(variant=number, point_file=path, point=read_point(path))
                for path in points.glob("*.json")
            ]
            wanted = LOOKS[-1] * len(self.layouts)
            if len(written) != wanted:  # as behind a prefix that does not start what follows it
                raise UserError(
                    f"cannot compare: {variant.name} does not run: it planned {len(written)} of {wanted} launches, and "
                    "ended without an error"
                )
            self._planned += written

    def start_pythons(self, stack: contextlib.ExitStack, folder: Path) -> None:
        """Start a Python that has TensorFlow imported for each Python and environment; it ends with the `stack`.

        All ranks start alike: none is forked where one cannot be. Behind a prefix it cannot, and MPICH's launcher gives
        its ranks an open socket, which a process that is forked elsewhere does not have.
        """
        if not all(variant.is_forked for variant in self.variants):
            return
        if any(launch.family != "openmpi" for launch in self._launches):
            return
        started: dict[tuple[str, tuple[tuple[str, str | None], ...]], str] = {}
        for number, variant in enumerate(self.variants):
            key = (variant.python, tuple(sorted(variant.variables.items())))
            if key not in started:
                place = folder / str(number)
                place.mkdir()
                python = warm_python(place, python=variant.python, changes=variant.variables)
                started[key] = stack.enter_context(python)
            self._programs[number] = started[key]

    def add_block(self, say: Callable[[str], None]) -> bool:
        """Train all variants on every layout in turns; return False, having done nothing, when the time is over.

        Raises:
            UserError: a variant does not run, twice, or cannot be compared.
        """
        begin = time.monotonic()
        if math.isnan(self._begin):
            self._begin = begin
        if begin - self._begin + self._longest_s > self._budget_s:
            return False
        turns = self.train_block(say)
        if not self.blocks and self._lengthen(float(turns["at_s"].max() - turns["at_s"].min()), say):
            return self.add_block(say)
        self.blocks.append(turns)
        self._longest_s = max(self._longest_s, time.monotonic() - begin)
        return True

    def train_block(self, say: Callable[[str], None]) -> pd.DataFrame:
        """Return the turns of the next block, which is trained again where it does not count."""
        for tries_left in reversed(range(_TRIES)):
            result = self._train(len(self.blocks), say)
            if not isinstance(result, str):
                return result
            if tries_left:
                say(f"block {len(self.blocks) + 1} is started again: {result}")
        raise UserError(f"cannot compare: {result}")

    def _lengthen(self, seconds: float, say: Callable[[str], None]) -> bool:
        """Have launches of more epochs trained where the turns of a block take less time than its start; say so."""
        factor = math.ceil(BLOCK_S / max(seconds, 0.1))
        workloads = [variant.sweep.workload for variant in self.variants]
        if seconds >= BLOCK_S / 2 or any(one.script or one.seconds is not None for one in workloads):
            return False
        epochs = workloads[0].epochs
        longer = epochs * factor
        say(f"{plural(epochs, 'epoch')} took {seconds:.0f} s interleaved: launches of {longer} are compared")
        for number, variant in enumerate(self.variants):
            more = replace(variant.sweep.workload, epochs=variant.sweep.workload.epochs * factor)
            self.variants[number] = replace(variant, sweep=replace(variant.sweep, workload=more))
            remove_contents(self._folder / str(number))
        self.write_points()
        self._epochs = longer
        return True

    def _train(self, number: int, say: Callable[[str], None]) -> pd.DataFrame | str:
        """Train one block, and return its turns, or in one sentence why it does not count."""
        launches = self._planned_launches(number)
        scratch = Scratch()
        specs = [self._launch_spec(name, launch, scratch.variables) for name, launch in launches.items()]
        on_gpus = any(launch.point.layout.gpus_per_rank for launch in launches.values())
        name = f"{self._folder.name}-{number}-{time.time_ns()}"
        block = TurnBlock(name=name, launches=tuple(specs), on_gpus=on_gpus)
        try:
            with HostLock().held("a comparison", say) as handles:
                end = run_block(block, pass_fds=(*handles, *scratch.handles))
        finally:
            scratch.close()
        end.turns.to_parquet(self._folder / f"turns-{number}.parquet", index=False)
        for name, launch in launches.items():
            reason = self._why_not_counted(launch, end.codes[name])
            if reason:
                return reason
        if end.turns.empty:
            return "the memory of the GPUs does not hold all launches at once"
        return end.turns

    def _planned_launches(self, number: int) -> dict[str, _PlannedLaunch]:
        """Return the launches of block `number` by their names (`launch_name`)."""
        return {
            launch_name(launch.variant, self.layouts.index(launch.point.layout)): launch
            for launch in self._planned
            if launch.point.repeat == number
        }

    def _record(self, launch: _PlannedLaunch) -> Path:
        return self._folder / str(launch.variant) / launch.point.folder

    def _why_not_counted(self, launch: _PlannedLaunch, code: int | None) -> str:
        """Return why a launch that ended with exit code `code` does not count, an empty text where it does."""
        name = self.variants[launch.variant].name
        record = self._record(launch)
        if code or not LaunchFolder(record).is_recorded:
            log = SweepFolder(record.parent).log(launch.point.folder)
            why = first_error(log.read_text(errors="replace")) or f"exit code {code}, see '{log}'"
            return f"{name} does not run on {launch.point.layout}: {why}"
        invalid = read_run(record).invalid
        return f"a launch of {name} does not count: {invalid[0]}" if invalid else ""

    def _launch_spec(self, name: str, launch: _PlannedLaunch, scratch: Mapping[str, str]) -> LaunchSpec:
        variant = self.variants[launch.variant]
        started = self._launches[launch.variant]
        record = self._record(launch)
        remove_folder(record, below=self._folder)  # of a block that did not count
        layout = launch.point.layout
        place = self.layouts.index(layout)
        launcher = (*started.words[place], *variant.prefix)
        job_launch = JobLaunch(
            point=launch.point,
            launcher=LaunchCommand(words=launcher),
            point_file=str(launch.point_file),
            record=str(record),
        )
        program = self._programs[launch.variant]
        spec = launch_spec(job_launch, self._data_dir or None, python=program)
        changes = {**started.environments[place], **scratch, **spec.changes, **variant.environment()}
        return replace(spec, name=name, changes=changes)

    def compare(self, threshold: float) -> Comparison:
        """Return the ratios by the blocks so far.

        Raises:
            UserError: another state of the code ran than was meant, or the rows of an epoch differ.
        """
        measured = [self._measured(number) for number in range(len(self.variants))]
        compared = []
        others = len(self.variants) - 1
        for number in range(1, len(self.variants)):
            self._check_rows(measured[0], measured[number])
            study = TurnsStudy(
                layouts=self.layouts,
                steps=(self._steps_per_epoch(0), self._steps_per_epoch(number)),
                variant=number,
                scaling=measured[0].scaling,
            )
            compared.append(judge_samples(block_samples(self.blocks, study), threshold, comparisons=others))
        return Comparison(
            variants=tuple(self.variants),
            measured=tuple(measured),
            rows=tuple(compared),
            spent=self.spent(),
            threshold=threshold,
            folder=self._folder,
        )

    def _check_rows(self, reference: Measurement, measurement: Measurement) -> None:
        for layout in self.layouts:
            reference_rows = reference.of(layout)[0].rows
            rows = measurement.of(layout)[0].rows
            if reference_rows != rows:
                raise UserError(
                    f"cannot compare: an epoch of {reference.label} has {reference_rows:,} rows, of "
                    f"{measurement.label} {rows:,}: let both train on the same"
                )

    def _steps_per_epoch(self, number: int) -> tuple[int, ...]:
        """Return the steps of an epoch of a variant on each layout, from the records of the first block."""
        steps = {}
        for launch in self._planned:
            if launch.variant == number and launch.point.repeat == 0:
                steps[launch.point.layout] = read_run(self._record(launch)).steps_per_epoch
        return tuple(steps[layout] for layout in self.layouts)

    def _measured(self, number: int) -> Measurement:
        variant = self.variants[number]
        measured = measurements(load_sweep(self._folder / str(number), every_code=True), variant.name)
        if len(measured) != 1 or variant.commit not in ("", measured[0].software.commit):
            states = ", ".join(measurement.state for measurement in measured)
            raise UserError(
                f"cannot compare: {variant.name} ran as {states}: do not change the code while a comparison runs"
            )
        return measured[0]


def run_variants(
    turns: VariantTurns, *, threshold: float = DEFAULT_THRESHOLD, say: Callable[[str], None]
) -> Comparison:
    """Return the comparison of the variants of `turns`, with more blocks while one of its rows is open.

    Raises:
        UserError: a variant does not run, or the budget was too small for a single block.
    """
    result: Comparison | None = None
    with interruptible(), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        turns.prepare(say)  # what is refused is refused before TensorFlow is imported
        turns.start_pythons(stack, Path(folder))
        for look in LOOKS:
            in_time = True
            while in_time and len(turns.blocks) < look:
                if in_time := turns.add_block(say):
                    say(str(turns.spent()))
            if not turns.blocks:
                raise UserError(f"no block was measured: give a larger {setting('budget')}")
            result = turns.compare(threshold)
            if result.is_sure:
                return result
            if not in_time:
                say(f"the budget of time is spent: {plural(len(turns.blocks), 'block')}")
                return result
    assert result is not None
    return result


def comparison_folder(results: Path) -> Path:
    """Return a new folder below `results` for the records of a comparison, named by the time."""
    make_results(results)
    return results / COMPARISONS / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
