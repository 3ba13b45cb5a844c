"""The ways to launch a contender: scripts of its own, the harness's own launches, and scripts under mpirun."""

import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

import msgspec

from harness import datasets
from harness.base.errors import RunError
from harness.base.processes import ask
from harness.bench.plan import LOSS_EPOCH, WARM_UP_EPOCHS, ContenderOutput, ProcessPlace, Task
from harness.bench.processes import ONE_THREAD, cores, free_ports, run_together
from harness.comm.launcher import AS_ROOT, mpi_version
from harness.schema.identity import code_identity
from harness.schema.layout import Layout
from harness.schema.record import Provenance, read_run
from harness.schema.sweep import Point
from harness.sweep.jobs import write_job
from harness.sweep.outcome import first_error, read_output
from harness.sweep.scheduler import Job, Scheduler
from harness.sweep.schedulers import open_scheduler

_POLL_S = 0.1
_ALARM_S = 10  # how long after its limit a script that the bench could not end ends itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """What a launch gave: seconds of every timed epoch (slowest rank), the mean training loss of epoch `LOSS_EPOCH`.

    `invalid` are doubts about the times, `details` facts for the header.
    """

    seconds: tuple[float, ...]
    loss: float | None = None
    invalid: tuple[str, ...] = ()
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ScriptContender:
    """A contender whose processes are ``python -m harness.bench.<module>``, one on each core.

    `helpers` names further processes, which train nothing. The last of them speaks for all; the others are servers,
    which end with it. They have cores of their own only where there are enough.
    """

    name: str
    title: str
    module: str
    ranks: int
    helpers: tuple[str, ...] = ()
    fast: bool = False
    package: str = ""

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run the script on the first cores; all processes that answer must end with the same weights."""
        places = self._places(limit_s)[::-1]
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
            words = [("-m", f"harness.bench.{self.module}", _json(task), _json(place)) for place in places]
            servers = len(words) - 1 if self.helpers else 0
            outputs = run_together(words, limit_s=limit_s, folder=Path(folder), servers=servers)
        answers = [_answer(output) for output in outputs]
        if len({answer.weights for answer in answers}) > 1:
            raise RunError("its processes ended with different weights: they were not synchronised")
        where = "had cores of their own" if places[0].cpus else "took turns with the workers on their cores"
        return _timing(answers, {self.title: f"its {' and '.join(self.helpers)} {where}"} if self.helpers else {})

    def _places(self, limit_s: int) -> list[ProcessPlace]:
        usable, count = cores(), self.ranks + len(self.helpers)
        if len(usable) < self.ranks:
            raise RunError(f"needs {self.ranks} cores, this machine has {len(usable)}")
        addresses = tuple(f"localhost:{port}" for port in free_ports(count)) if count > 1 else ()
        own = usable if len(usable) >= count else [*usable[: self.ranks], *[()] * len(self.helpers)]
        return [
            ProcessPlace(index=index, cpus=own[index], limit_s=limit_s + _ALARM_S, addresses=addresses)
            for index in range(count)
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
        place = ProcessPlace(index=0, cpus=() if self.ranks > 1 else cores()[0], limit_s=limit_s + _ALARM_S)
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
            words = (
                *("-m", "harness", "run", "-n", str(self.ranks), "--logs", folder),
                *(str(script), _json(task), _json(place)),
            )
            (output,) = run_together([words], limit_s=limit_s, folder=Path(folder))
        return _timing([_answer(output)])


@dataclass(frozen=True, kw_only=True)
class Ours:
    """The harness itself, launched as a sweep launches it: point file, rendered script, run record."""

    name: str
    title: str
    ranks: int
    sync: str = "gradients"
    shipped: bool = False
    fast: bool = True
    package: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Launch one point and read its record; its doubts about the times are the record's."""
        scheduler, layout = _local(self.ranks)
        workload = replace(task, shipped=self.shipped).workload(sync=self.sync)
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
            loss=record.epochs[LOSS_EPOCH - 1].train_loss,
            invalid=record.invalid,
            details=self._details(record.provenance),
        )

    def _details(self, provenance: Provenance) -> dict[str, str]:
        if self.ranks == 1:
            return {}
        return {"MPI library": provenance.mpi_library.split(",")[0], "reduction": provenance.reduction}


@dataclass(frozen=True, kw_only=True)
class PartLaunch:
    """No training: what a part of the steps of an epoch takes by itself, as the module of that name measures it."""

    name: str
    title: str
    module: str
    ranks: int
    fast: bool = False
    package: str = ""

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run the module on the ranks."""
        command = (sys.executable, "-m", f"harness.bench.{self.module}", _json(task))
        return _timing([_under_mpirun(self.ranks, command, limit_s)])


@dataclass(frozen=True, kw_only=True)
class Standalone:
    """A `script` beside this module that imports nothing of the harness, on ranks: FOLDER EPOCHS BATCH SEED RATE.

    `python` runs it, under the harness's mpirun, or with `own_mpi` under the one that lies beside that Python.
    """

    name: str
    title: str
    script: str
    ranks: int
    shipped: bool = False
    fast: bool = False
    package: str = ""
    python: str = sys.executable
    own_mpi: bool = False

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run a copy of the script on the rows that all contenders train on."""
        task = replace(task, shipped=self.shipped)
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
            begin = time.monotonic()
            words = ("-m", "harness.bench.input_files", _json(task), folder)
            run_together([words], limit_s=limit_s, folder=Path(folder))
            script = shutil.copy(Path(__file__).with_name(self.script), folder)  # nothing else to be imported beside it
            numbers = (WARM_UP_EPOCHS + task.epochs, task.batch_per_rank, task.seed, task.workload().learning_rate)
            command = (self.python, script, folder, *map(str, numbers))
            left_s = max(1, limit_s - int(time.monotonic() - begin))
            answer = _under_mpirun(self.ranks, command, left_s, beside=Path(self.python) if self.own_mpi else None)
        return _timing([answer], {self.title: answer.versions} if answer.versions else {})


def _under_mpirun(ranks: int, command: Sequence[str], limit_s: int, *, beside: Path | None = None) -> ContenderOutput:
    """Run `command` on this machine's ranks, by the mpirun `beside` a Python if given; return what the first answers.

    Raises:
        RunError: it failed.
    """
    scheduler, layout = _local(ranks)
    launcher, changes = scheduler.launcher(layout).words, dict(scheduler.environment(layout))
    if beside:
        launcher = (str(beside.parent / "mpirun"), "-n", str(ranks), "--bind-to", "core", "--map-by", "core")
        changes |= AS_ROOT | ONE_THREAD
    reply = ask((*launcher, *command), limit_s=limit_s, changes=changes)
    if reply.code != 0:
        raise RunError(first_error(reply.err) or reply.last_error)
    return _answer(reply.out)


def _timing(answers: Sequence[ContenderOutput], details: dict[str, str] | None = None) -> Timing:
    """Return what all processes of a launch have answered together."""
    losses = [answer.losses[LOSS_EPOCH - 1] for answer in answers if answer.losses]
    if not all(math.isfinite(loss) for loss in losses):
        raise RunError("its loss is not a finite number")
    return Timing(
        seconds=slowest(answer.seconds for answer in answers)[WARM_UP_EPOCHS:],
        loss=mean(losses) if losses else None,
        details=details or {},
    )


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


def _answer(output: str) -> ContenderOutput:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise RunError("it printed no answer")
    return msgspec.json.decode(lines[-1], type=ContenderOutput)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
