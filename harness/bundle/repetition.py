"""Repeat recorded launches from their records alone, and say what came out the same."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, stdev

import psutil
from scipy import stats

from harness.analysis.numbers import percent
from harness.analysis.stats import SESSION_SPREAD
from harness.base.errors import UserError
from harness.datasets import locate
from harness.schema.record import RunRecord, read_run
from harness.schema.sweep import Layout, Sweep
from harness.schema.sweep_folder import RUN_FILE, LaunchFolder, SweepFolder
from harness.sweep.execute import run_sweep
from harness.sweep.submission import Submission

FOLDER = "reproductions"  # results/reproductions/<time>
SAME, CLOSE, DIFFERENT, NOT_COMPARED = "same", "within the bound", "different", "not compared"
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
    found = []
    for run in chosen:
        of = (run.point.layout, run.point.code)
        same_layout = tuple(one for one in valid if (one.point.layout, one.point.code) == of)
        found.append(Recorded(run=run, same_layout=same_layout))
    return tuple(found)


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
        layout = replace(layout, nodes=fit, ranks_per_node=1, shares=None, last_node=None)
        workload = replace(workload, batch_per_rank=None, global_batch=run.global_batch)
    source = locate(workload, data_dir)
    if source.sha256 != run.data.sha256:
        raise UserError(
            f"the {run.data.name} data of the record ({run.data.kind}, {run.data.sha256[:12]}) is not here, what was "
            f"found is {source.kind}, {source.sha256[:12]}: name the folder with --data-dir"
        )
    return Sweep(
        workload=workload,
        layouts=(layout,),
        repeats=1,
        data_id=source.data_id,
        oversubscribe=run.point.oversubscribe,
        settings=run.point.settings,
    )


def repeat_launch(sweep: Sweep, *, data_dir: Path | None, results: Path, submission: Submission) -> RunRecord:
    """Launch the sweep's one launch in a new folder of `results`, and return its record.

    Raises:
        UserError: it cannot run here.
        RunError: it failed.
    """
    folder = results / FOLDER / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    made = run_sweep(sweep, data_dir=data_dir, results=folder, submission=submission, invalid_too=False)
    (file,) = made.glob(f"*/{RUN_FILE}")
    return read_run(file.parent)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproducedQuantity:
    """One line of the comparison: a `quantity` as it was recorded and as it is now, and the `verdict` on it."""

    quantity: str
    recorded: str
    now: str
    verdict: str
    remark: str = ""


def environment(old: RunRecord, new: RunRecord) -> tuple[ReproducedQuantity, ...]:
    """Return a line for everything that a launch's result or time depends on and that differs between the two."""
    return tuple(
        ReproducedQuantity(quantity=name, recorded=was, now=now, verdict=DIFFERENT, remark=f"matters for {matters}")
        for name, was, now, matters in _facts(old, new)
        if was != now
    )


def _facts(old: RunRecord, new: RunRecord) -> list[tuple[str, str, str, str]]:
    """Return name, recorded and present value of every fact, and what it matters for."""
    was, now = old.provenance, new.provenance
    weights, times = "weights and times", "times"
    old_source, new_source = (run.point.code.partition("-")[0] or run.provenance.commit[:12] for run in (old, new))
    facts = [
        ("source", old_source, new_source, weights),
        ("TensorFlow", was.tensorflow, now.tensorflow, weights),
        ("Keras", was.keras, now.keras, weights),
        ("NumPy", was.numpy, now.numpy, weights),
        ("Python", was.python, now.python, times),
        ("mpi4py", was.mpi4py, now.mpi4py, times),
        ("MPI library", was.mpi_library, now.mpi_library, weights),
        ("reduction", was.reduction, now.reduction, weights),
        ("layout", str(old.point.layout), str(new.point.layout), weights),
        ("data", old.data.sha256[:12], new.data.sha256[:12], weights),
        ("processor", was.machine.cpu, now.machine.cpu, weights),
        ("cores", str(was.machine.cores), str(now.machine.cores), times),
        ("operating system", was.machine.os, now.machine.os, times),
    ]
    for kind, other in ((was.environment, now.environment), (was.system, now.system)):
        facts += [(name, kind.get(name, "none"), other.get(name, "none"), times) for name in sorted({*kind, *other})]
    return facts


def results_of(old: RunRecord, new: RunRecord, others: Sequence[RunRecord] = ()) -> tuple[ReproducedQuantity, ...]:
    """Return a line each for the weights, the curve of the training loss, the test accuracy and the epoch's time.

    `others` are valid recorded launches of the same layout, `old` among them: their spread and the deviation between
    sessions (`analysis.stats.SESSION_SPREAD`) give the interval that the time must lie in.
    """
    changed = [name for name, was, now, matters in _facts(old, new) if was != now and "weights" in matters]
    return (_weights(old, new, changed), _losses(old, new), _accuracy(old, new), _time(old, new, others))


def _weights(old: RunRecord, new: RunRecord, changed: Sequence[str]) -> ReproducedQuantity:
    was, now = old.weights.sha256, new.weights.sha256
    remark = ""
    if was == now:
        verdict, remark = SAME, "bit for bit"
    elif changed:
        verdict, remark = NOT_COMPARED, f"bits can differ with: {', '.join(changed)}"
    elif old.point.layout.threads > 1 or any(rank.gpu for rank in old.ranks):
        verdict, remark = NOT_COMPARED, "several threads or a GPU add in an order that varies"
    else:
        verdict = DIFFERENT
    return ReproducedQuantity(quantity="weights", recorded=was[:12], now=now[:12], verdict=verdict, remark=remark)


def _losses(old: RunRecord, new: RunRecord) -> ReproducedQuantity:
    was, now = ([epoch.train_loss for epoch in run.epochs] for run in (old, new))
    pairs = [(a, b) for a, b in zip(was, now, strict=False) if a is not None and b is not None]
    shown = [f"{losses[-1]:.6g}" if losses and losses[-1] is not None else "none" for losses in (was, now)]
    if not pairs or len(was) != len(now):
        return ReproducedQuantity(quantity="training loss", recorded=shown[0], now=shown[1], verdict=NOT_COMPARED)
    worst = max(abs(b - a) / max(abs(a), 1e-12) for a, b in pairs)
    verdict = SAME if worst == 0 else CLOSE if worst <= LOSS_BOUND else DIFFERENT
    remark = f"largest difference of an epoch {percent(worst)}, bound {percent(LOSS_BOUND)}"
    return ReproducedQuantity(quantity="training loss", recorded=shown[0], now=shown[1], verdict=verdict, remark=remark)


def _accuracy(old: RunRecord, new: RunRecord) -> ReproducedQuantity:
    """Two accuracies over n test rows differ by chance by up to 1.96 sqrt(2 p (1 - p) / n) (binomial)."""
    was, now = old.epochs[-1].test_accuracy, new.epochs[-1].test_accuracy
    if was is None or now is None:
        return ReproducedQuantity(quantity="test accuracy", recorded="none", now="none", verdict=NOT_COMPARED)
    bound = 1.96 * math.sqrt(2 * was * (1 - was) / max(1, old.data.test_rows))
    verdict = SAME if was == now else CLOSE if abs(now - was) <= bound else DIFFERENT
    remark = f"bound {100 * bound:.2f} points, the chance of {old.data.test_rows:,} test rows"
    shown = [f"{100 * value:.2f} %" for value in (was, now)]
    return ReproducedQuantity(quantity="test accuracy", recorded=shown[0], now=shown[1], verdict=verdict, remark=remark)


def _time(old: RunRecord, new: RunRecord, others: Sequence[RunRecord]) -> ReproducedQuantity:
    before, now = [run.epoch_s for run in others or (old,)], new.epoch_s
    shown = {"quantity": "epoch time", "recorded": f"{median(before):.4g} s", "now": f"{now:.4g} s"}
    if old.provenance.machine.fingerprint != new.provenance.machine.fingerprint:
        return ReproducedQuantity(**shown, verdict=NOT_COMPARED, remark="another machine")
    if old.point.layout != new.point.layout or old.invalid or new.invalid:
        why = "another layout" if old.point.layout != new.point.layout else (*old.invalid, *new.invalid)[0]
        return ReproducedQuantity(**shown, verdict=NOT_COMPARED, remark=why)
    if len(before) < _LEAST:
        why = f"{len(before)} recorded launches have no spread"
        return ReproducedQuantity(**shown, verdict=NOT_COMPARED, remark=why)
    logs = [math.log(value) for value in before]
    launches = stats.t.ppf(0.975, len(logs) - 1) * stdev(logs) * math.sqrt(1 + 1 / len(logs))
    half = math.hypot(launches, 1.96 * math.sqrt(2) * SESSION_SPREAD)
    low, high = (median(before) * math.exp(sign * half) for sign in (-1, 1))
    verdict = CLOSE if low <= now <= high else DIFFERENT
    return ReproducedQuantity(**shown, verdict=verdict, remark=f"95 % of repetitions: {low:.4g} to {high:.4g} s")


def overall_verdict(lines: Sequence[ReproducedQuantity]) -> str:
    """Return the verdict on a whole repetition."""
    wrong = [line.quantity for line in lines if line.verdict == DIFFERENT]
    if wrong:
        return f"Not reproduced: {', '.join(dict.fromkeys(wrong))}."
    if all(line.verdict == NOT_COMPARED for line in lines):
        return "Nothing could be compared."
    kept = [line.quantity for line in lines if line.verdict in (SAME, CLOSE)]
    left = [line.quantity for line in lines if line.verdict == NOT_COMPARED]
    also = f" Not compared: {', '.join(dict.fromkeys(left))}." if left else ""
    return f"Reproduced: {', '.join(dict.fromkeys(kept))}.{also}"
