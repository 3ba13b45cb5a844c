"""Repeat recorded launches from their records alone, and say what came out the same."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean, stdev

import psutil
from scipy import stats

from harness.analysis.sessions import DEFAULT_DEVIATION, STEP
from harness.analysis.units import percent
from harness.base.command_context import Context
from harness.base.errors import UserError
from harness.base.files import sha256_of
from harness.base.setting_names import setting
from harness.datasets import locate
from harness.schema.code_identity import user_files
from harness.schema.layout import Layout
from harness.schema.record import RunRecord, read_run
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import RUN_FILE, LaunchFolder, SweepFolder, make_results
from harness.sweep.execute import run_sweep
from harness.sweep.submission_settings import Submission

FOLDER = "reproductions"  # results/reproductions/<time>
SAME = "same"
CLOSE = "within the bound"
DIFFERENT = "different"
NOT_COMPARED = "not compared"
LOSS_BOUND = 0.02  # largest relative difference of an epoch's training loss between equal mathematics rounded otherwise
_LEAST = 3  # launches whose spread an interval can rest on


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A launch to be repeated, and all valid recorded ones of its layout and code."""

    run: RunRecord
    same_layout: tuple[RunRecord, ...]


def recorded(folder: Path) -> tuple[Recorded, ...]:
    """Return the launch in `folder`; of a sweep's folder the first valid launch of each layout.

    Raises:
        UserError: a record is missing or damaged, or no launch of the sweep has valid times.
    """
    single = LaunchFolder(folder).is_recorded
    sweep = folder.resolve().parent if single else folder
    runs = sorted(map(read_run, SweepFolder(sweep).records()), key=lambda run: run.point.repeat)
    valid = [run for run in runs if not run.invalid]
    first: dict[Layout, RunRecord] = {}
    for run in valid:
        first.setdefault(run.point.layout, run)
    chosen = [read_run(folder)] if single else [*first.values()]
    if not chosen:
        raise UserError(f"'{folder}' has no launch with valid times: name one of its launches")
    return tuple(Recorded(run=run, same_layout=_of_same_layout(run, valid)) for run in chosen)


def _of_same_layout(run: RunRecord, runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Return those of `runs` that have the layout and the code of `run`."""
    point = run.point
    return tuple(same for same in runs if (same.point.layout, same.point.code) == (point.layout, point.code))


def foreign_code(run: RunRecord) -> tuple[str, ...]:
    """Return what a repetition of `run` would run that is not the harness's own, one clause each; nothing is imported.

    That is the user's script, or what MODEL, SYNC and OPTIMIZER name, with the hashes of the files that are here, and
    the settings that its ranks would have in their environment.

    Raises:
        UserError: a file of it cannot be read.
    """
    workload = run.point.workload
    if workload.script:
        clauses = [f"the script {workload.script.command}"]
    else:
        clauses = [setting(option, text) for option, text in workload.own_code.items()]
    for _, files in user_files(workload):
        clauses += [f"{path} (SHA-256 {sha256_of(path)[:12]})" for path in sorted(files)]
    return (*clauses, *(f"{name}={value} in the environment" for name, value in run.point.settings))


def require_trust(runs: Sequence[RunRecord]) -> None:
    """Refuse to repeat `runs` whose repetition would run foreign code.

    Raises:
        UserError: it would; it lists all of it.
    """
    clauses = dict.fromkeys(clause for run in runs for clause in foreign_code(run))
    if clauses:
        raise UserError(
            f"to repeat this record runs what it names, as you: {'; '.join(clauses)}: look at it, then add "
            f"{setting('trust', True)}"
        )


def plan_repetition(run: RunRecord, data_dir: Path | None, *, here: bool) -> Sweep:
    """Return the sweep of one launch that repeats `run`; with `here` on as many ranks as this machine has cores for.

    The rows of a step over all ranks stay the same.

    Raises:
        UserError: the data of the record is not here.
    """
    workload = replace(run.point.workload, seed=run.point.seed)
    layout = run.point.layout
    fit = max(1, (psutil.cpu_count(logical=False) or 1) // layout.threads)
    if here and layout.ranks > fit:
        layout = replace(layout, nodes=fit, ranks_per_node=1, last_node=None)
        workload = replace(workload, batch_per_rank=None, global_batch=run.global_batch)
    source = locate(workload, data_dir)
    if source.sha256 != run.data.sha256:
        raise UserError(
            f"the {run.data.name} data of the record ({run.data.kind}, {run.data.sha256[:12]}) is not here, what was "
            f"found is {source.kind}, {source.sha256[:12]}: name the folder with {setting('data_dir')}"
        )
    return Sweep(
        workload=workload,
        layouts=(layout,),
        repeats=1,
        data_id=source.data_id,
        oversubscribe=run.point.oversubscribe,
        settings=run.point.settings,
    )


def repeat_launch(sweep: Sweep, context: Context, submission: Submission) -> RunRecord:
    """Launch the sweep's one launch in a new folder of the results, and return its record.

    Raises:
        UserError: it cannot run here.
        RunError: it failed.
    """
    make_results(context.results)
    folder = context.results / FOLDER / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    sweep_folder = run_sweep(sweep, replace(context, results=folder), submission, invalid_too=False)
    (file,) = sweep_folder.glob(f"*/{RUN_FILE}")
    return read_run(file.parent)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproducedQuantity:
    """One line of the comparison: a `quantity` as it was recorded and as it is now, and the `verdict` on it."""

    quantity: str
    recorded: str
    now: str
    verdict: str
    remark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """The launch `old` and its repetition `new`.

    `others` are valid recorded launches of the same layout, `old` among them: their spread and the deviation between
    sessions (`analysis.sessions.DEFAULT_DEVIATION`) give the interval that the time must lie in.
    """

    old: RunRecord
    new: RunRecord
    others: tuple[RunRecord, ...] = ()

    def environment(self) -> tuple[ReproducedQuantity, ...]:
        """Return a line for everything that a launch's result or time depends on and that differs between the two."""
        return tuple(
            ReproducedQuantity(quantity=name, recorded=was, now=now, verdict=DIFFERENT, remark=f"matters for {matters}")
            for name, was, now, matters in self._facts()
            if was != now
        )

    def results(self) -> tuple[ReproducedQuantity, ...]:
        """Return a line each for the weights, the training loss by epoch, the test accuracy and the epoch's time."""
        return (self._weights(), self._losses(), self._accuracy(), self._time())

    def _facts(self) -> list[tuple[str, str, str, str]]:
        """Return name, recorded and present value of every fact, and what it matters for."""
        was, now = self.old.provenance, self.new.provenance
        weights, times = "weights and times", "times"
        sources = [run.point.code.partition("-")[0] or run.provenance.commit[:12] for run in (self.old, self.new)]
        facts = [
            ("source", sources[0], sources[1], weights),
            ("TensorFlow", was.tensorflow, now.tensorflow, weights),
            ("Keras", was.keras, now.keras, weights),
            ("NumPy", was.numpy, now.numpy, weights),
            ("Python", was.python, now.python, times),
            ("mpi4py", was.mpi4py, now.mpi4py, times),
            ("MPI library", was.mpi_library, now.mpi_library, weights),
            ("reduction", was.reduction, now.reduction, weights),
            ("layout", str(self.old.point.layout), str(self.new.point.layout), weights),
            ("data", self.old.data.sha256[:12], self.new.data.sha256[:12], weights),
            ("processor", was.machine.cpu, now.machine.cpu, weights),
            ("cores", str(was.machine.cores), str(now.machine.cores), times),
            ("operating system", was.machine.os, now.machine.os, times),
        ]
        for before, after in ((was.environment, now.environment), (was.system, now.system)):
            names = sorted({*before, *after})
            facts += [(name, before.get(name, "none"), after.get(name, "none"), times) for name in names]
        return facts

    def _weights(self) -> ReproducedQuantity:
        was = self.old.weights.sha256
        now = self.new.weights.sha256
        facts = self._facts()
        changed = [name for name, before, after, matters in facts if before != after and "weights" in matters]
        verdict = DIFFERENT
        remark = ""
        if was == now:
            verdict = SAME
            remark = "bit for bit"
        elif changed:
            verdict = NOT_COMPARED
            remark = f"bits can differ with: {', '.join(changed)}"
        elif self.old.point.layout.threads > 1 or any(rank.gpu for rank in self.old.ranks):
            verdict = NOT_COMPARED
            remark = "several threads or a GPU add in an order that varies"
        return ReproducedQuantity(quantity="weights", recorded=was[:12], now=now[:12], verdict=verdict, remark=remark)

    def _losses(self) -> ReproducedQuantity:
        was = [epoch.train_loss for epoch in self.old.epochs]
        now = [epoch.train_loss for epoch in self.new.epochs]
        pairs = [
            (before, after) for before, after in zip(was, now, strict=False) if before is not None and after is not None
        ]
        verdict = NOT_COMPARED
        remark = ""
        if pairs and len(was) == len(now):
            worst = max(abs(after - before) / max(abs(before), 1e-12) for before, after in pairs)
            verdict = _verdict(worst, LOSS_BOUND)
            remark = f"largest difference of an epoch {percent(worst)}, bound {percent(LOSS_BOUND)}"
        return ReproducedQuantity(
            quantity="training loss", recorded=_last_loss(was), now=_last_loss(now), verdict=verdict, remark=remark
        )

    def _accuracy(self) -> ReproducedQuantity:
        """Two accuracies over n test rows differ by chance by up to 1.96 sqrt(2 p (1 - p) / n) (binomial)."""
        was = self.old.epochs[-1].test_accuracy
        now = self.new.epochs[-1].test_accuracy
        if was is None or now is None:
            return ReproducedQuantity(quantity="test accuracy", recorded="none", now="none", verdict=NOT_COMPARED)
        bound = 1.96 * math.sqrt(2 * was * (1 - was) / max(1, self.old.data.test_rows))
        return ReproducedQuantity(
            quantity="test accuracy",
            recorded=f"{100 * was:.2f} %",
            now=f"{100 * now:.2f} %",
            verdict=_verdict(abs(now - was), bound),
            remark=f"bound {100 * bound:.2f} points, the chance of {self.old.data.test_rows:,} test rows",
        )

    def _time(self) -> ReproducedQuantity:
        before = [run.epoch_s for run in self.others or (self.old,)]
        typical = geometric_mean(before)
        now = self.new.epoch_s
        obstacle = self._why_times_differ(len(before))
        if obstacle:
            verdict = NOT_COMPARED
            remark = obstacle
        else:
            logs = [math.log(value) for value in before]
            launches = stats.t.ppf(0.975, len(logs) - 1) * stdev(logs) * math.sqrt(1 + 1 / len(logs))
            half = math.hypot(launches, 1.96 * math.sqrt(2) * DEFAULT_DEVIATION[STEP])
            low = typical * math.exp(-half)
            high = typical * math.exp(half)
            verdict = CLOSE if low <= now <= high else DIFFERENT
            remark = f"95 % of repetitions: {low:.4g} to {high:.4g} s"
        return ReproducedQuantity(
            quantity="epoch time",
            recorded=f"{typical:.4g} s",
            now=f"{now:.4g} s",
            verdict=verdict,
            remark=remark,
        )

    def _why_times_differ(self, recorded_launches: int) -> str:
        """Return why the times of two launches cannot be compared, empty if they can."""
        if self.old.provenance.machine.fingerprint != self.new.provenance.machine.fingerprint:
            return "another machine"
        if self.old.point.layout != self.new.point.layout:
            return "another layout"
        if self.old.invalid or self.new.invalid:
            return (*self.old.invalid, *self.new.invalid)[0]
        if recorded_launches < _LEAST:
            return f"{recorded_launches} recorded launches have no spread"
        return ""


def _last_loss(losses: Sequence[float | None]) -> str:
    return "none" if not losses or losses[-1] is None else f"{losses[-1]:.6g}"


def _verdict(difference: float, bound: float) -> str:
    if difference == 0:
        return SAME
    return CLOSE if difference <= bound else DIFFERENT


def overall_verdict(lines: Sequence[ReproducedQuantity]) -> str:
    """Return the verdict on a whole repetition."""
    wrong = [line.quantity for line in lines if line.verdict == DIFFERENT]
    if wrong:
        return f"Not reproduced: {', '.join(dict.fromkeys(wrong))}."
    if all(line.verdict == NOT_COMPARED for line in lines):
        return "Nothing could be compared."
    not_compared = [line.quantity for line in lines if line.verdict == NOT_COMPARED]
    reproduced = [line.quantity for line in lines if line.verdict in (SAME, CLOSE)]
    whole = [quantity for quantity in dict.fromkeys(reproduced) if quantity not in not_compared]
    partly = [quantity for quantity in dict.fromkeys(reproduced) if quantity in not_compared]
    never = [quantity for quantity in dict.fromkeys(not_compared) if quantity not in reproduced]
    sentences = [
        f"{begin}: {', '.join(quantities)}."
        for begin, quantities in (
            ("Reproduced", whole),
            ("Reproduced where it could be compared", partly),
            ("Not compared", never),
        )
        if quantities
    ]
    return " ".join(sentences)
