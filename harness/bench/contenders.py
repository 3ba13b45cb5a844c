"""The registry of contenders: who trains the same network on the same data, and how each is launched.

A new one is one entry of `CONTENDERS`: a script of its own (`Script`), a sync policy of the harness (`Ours`), or a
class with the same attributes and `launch`.
"""

import math
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import msgspec

from harness import datasets
from harness.base.errors import RunError
from harness.base.processes import ask
from harness.bench.plan import WARM_UP_EPOCHS, Answer, Place, Task
from harness.bench.processes import cores, free_ports, run_together
from harness.comm.launcher import mpi_version
from harness.schema.identity import code_identity
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import Provenance, read_run
from harness.sweep.jobs import write_job
from harness.sweep.outcome import first_error, read_output
from harness.sweep.scheduler import Job, Scheduler
from harness.sweep.schedulers import open_scheduler

_POLL_S = 0.1
_ALARM_S = 10  # how long after its limit a script that the bench could not end ends itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """What a launch gave: seconds of every timed epoch (slowest rank), doubts about them, facts for the header."""

    seconds: tuple[float, ...]
    invalid: tuple[str, ...] = ()
    details: dict[str, str] = field(default_factory=dict)


class Contender(Protocol):
    """One way to train."""

    @property
    def name(self) -> str:
        """The name in records."""

    @property
    def title(self) -> str:
        """The head of its column."""

    @property
    def ranks(self) -> int:
        """How many processes train, one on each core."""

    @property
    def fast(self) -> bool:
        """Whether it runs at about the speed that `Experiment.bench_rate` says."""

    @property
    def package(self) -> str:
        """The package it needs beyond the harness's own; empty for none."""

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Train `task` once.

        Raises:
            RunError: it could not be started, failed, or was not done within `limit_s` seconds.
        """


@dataclass(frozen=True, kw_only=True)
class Script:
    """A contender whose processes are ``python -m harness.bench.<module>``, one on each core."""

    name: str
    title: str
    module: str
    ranks: int
    fast: bool = False
    package: str = ""

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run the script on the first cores; all its processes must end with the same weights."""
        places = self._places(limit_s)
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
            words = [("-m", f"harness.bench.{self.module}", _json(task), _json(place)) for place in places]
            outputs = run_together(words, limit_s=limit_s, folder=Path(folder))
        answers = [_answer(output) for output in outputs]
        if len({answer.weights for answer in answers}) > 1:
            raise RunError("its processes ended with different weights: they were not synchronised")
        if not all(math.isfinite(answer.loss) for answer in answers):
            raise RunError("its loss is not a finite number")
        return Timing(seconds=slowest(answer.seconds for answer in answers))

    def _places(self, limit_s: int) -> list[Place]:
        usable = cores()
        if len(usable) < self.ranks:
            raise RunError(f"needs {self.ranks} cores, this machine has {len(usable)}")
        addresses = tuple(f"localhost:{port}" for port in free_ports(self.ranks)) if self.ranks > 1 else ()
        return [
            Place(index=index, cpus=usable[index], limit_s=limit_s + _ALARM_S, addresses=addresses)
            for index in range(self.ranks)
        ]


@dataclass(frozen=True, kw_only=True)
class Transparent:
    """The script of the contender `keras-fit`, unmodified, on ranks: ``harness run -n RANKS``."""

    name: str
    title: str
    ranks: int
    fast: bool = False
    package: str = ""

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run the script; that its ranks end with the same weights is what `harness run` shows by itself."""
        if len(cores()) < self.ranks:
            raise RunError(f"needs {self.ranks} cores, this machine has {len(cores())}")
        script = Path(__file__).with_name("keras_fit.py")
        place = Place(index=0, cpus=() if self.ranks > 1 else cores()[0], limit_s=limit_s + _ALARM_S)
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
            words = (
                *("-m", "harness", "run", "-n", str(self.ranks), "--logs", folder),
                *(str(script), _json(task), _json(place)),
            )
            (output,) = run_together([words], limit_s=limit_s, folder=Path(folder))
        return Timing(seconds=_answer(output).seconds)


@dataclass(frozen=True, kw_only=True)
class Ours:
    """The harness itself, launched as a sweep launches it: point file, rendered script, run record."""

    name: str
    title: str
    ranks: int
    sync: str = "gradients"
    fast: bool = True
    package: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Launch one point and read its record; its doubts about the times are the record's."""
        scheduler, layout = _local(self.ranks)
        workload = task.workload(sync=self.sync)
        point = Point(
            workload=workload,
            layout=layout,
            data_id=datasets.locate(workload, None).data_id,
            settings=self.settings,
            code=code_identity(workload, mpi_version()),
        )
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as name:
            folder = Path(name)
            job = write_job(point, scheduler, folder=folder, data_dir=None)
            _finish(scheduler, job, limit_s)
            record = read_run(folder / point.folder)
        return Timing(
            seconds=tuple(max(epoch.seconds) for epoch in record.epochs[WARM_UP_EPOCHS:]),
            invalid=record.invalid,
            details=self._details(record.provenance),
        )

    def _details(self, provenance: Provenance) -> dict[str, str]:
        if self.ranks == 1:
            return {}
        return {"MPI library": provenance.mpi_library.split(",")[0], "reduction": provenance.reduction}


@dataclass(frozen=True, kw_only=True)
class RawSums:
    """No training: what the MPI library itself takes for the sums of an epoch, in place, one call after the other."""

    name: str
    title: str
    ranks: int
    fast: bool = False
    package: str = ""

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run ``python -m harness.bench.raw_sums`` on the ranks."""
        scheduler, layout = _local(self.ranks)
        words = (*scheduler.launcher(layout).words, sys.executable, "-m", "harness.bench.raw_sums", _json(task))
        reply = ask(words, limit_s=limit_s, changes=scheduler.environment(layout))
        if reply.code != 0:
            raise RunError(first_error(reply.err) or reply.last_error)
        return Timing(seconds=_answer(reply.out).seconds)


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Script(name="keras-fit", title="Keras fit, 1 rank", module="keras_fit", ranks=1),
        Transparent(name="transparent-1", title="harness run, 1 rank", ranks=1),
        Ours(name="ours-1", title="ours, 1 rank", ranks=1),
        Ours(name="summing-1", title="ours summing alone, 1 rank", ranks=1, settings=(("HARNESS_SYNC_ALONE", "1"),)),
        Script(name="mwms", title="MWMS, 2 workers", module="mwms", ranks=2),
        Script(name="ddp", title="PyTorch DDP, 2 processes", module="ddp", ranks=2, package="torch"),
        Transparent(name="transparent", title="harness run, 2 ranks", ranks=2),
        Ours(name="gradients", title="ours gradients, 2 ranks", ranks=2),
        Ours(name="weights-epoch", title="ours weights:epoch, 2 ranks", ranks=2, sync="weights:epoch"),
        Ours(name="none", title="ours none, 2 ranks", ranks=2, sync="none"),
        RawSums(name="raw-sums", title="MPI_Allreduce alone, 2 ranks", ranks=2),
    )
}


def installed(contenders: Mapping[str, Contender]) -> list[str]:
    """Return the names of those of `contenders` whose own package, if they need one, is installed."""
    return [name for name, one in contenders.items() if not one.package or find_spec(one.package)]


def slowest(seconds: Iterable[Iterable[float]]) -> tuple[float, ...]:
    """Return the longest time of every epoch; `seconds` holds one row per process."""
    return tuple(max(epoch) for epoch in zip(*seconds, strict=True))


def _local(ranks: int) -> tuple[Scheduler, Layout]:
    """Return this machine's scheduler and the layout of `ranks` ranks of one core each, which it can run."""
    scheduler, layout = open_scheduler("local"), Layout(nodes=ranks)
    refusal = scheduler.refusal(layout)
    if refusal:
        raise RunError(refusal)
    return scheduler, layout


def _finish(scheduler: Scheduler, job: Job, limit_s: int) -> None:
    """Run `job` to its end; end it when it takes too long or the bench is interrupted."""
    deadline = time.monotonic() + limit_s
    (name,) = scheduler.submit(job)
    try:
        while (state := scheduler.poll((name,))[name]).phase != "ended":
            if time.monotonic() > deadline:
                raise RunError(f"was not done within its limit of {limit_s} s")
            time.sleep(_POLL_S)
    finally:
        scheduler.cancel((name,))
    if state.exit_code:
        raise RunError(first_error(read_output(job.log)) or scheduler.explain(state))


def _answer(output: str) -> Answer:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise RunError("it printed no answer")
    return msgspec.json.decode(lines[-1], type=Answer)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
