"""The ways to launch a contender: processes of its own, the harness's own launches, and scripts under mpirun."""

import contextlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import msgspec

from harness import datasets
from harness.base.errors import RunError
from harness.base.processes import ONE_THREAD, ask
from harness.bench.bench_record import (
    LOSS_EPOCH,
    WARM_UP_EPOCHS,
    Contender,
    ContenderOutput,
    ProcessPlace,
    Task,
    Timing,
)
from harness.comm.launcher import AS_ROOT, mpi_version
from harness.schema.identity import code_identity
from harness.schema.layout import Layout
from harness.schema.record import read_run
from harness.schema.sweep import Point
from harness.sweep.jobs import write_job
from harness.sweep.launch_command import mpirun_words
from harness.sweep.outcome import first_error, read_output
from harness.sweep.scheduler import Job, Scheduler
from harness.sweep.schedulers import open_scheduler

_SCRIPTS = "harness.bench.contenders"
_FOLDER = Path(__file__).with_name("contenders")
_TOPOLOGY = Path("/sys/devices/system/cpu")
_POLL_S = 0.1
_ALARM_S = 10  # how long after its limit a script that the bench could not end ends itself


@dataclass(frozen=True, kw_only=True)
class ScriptContender(Contender):
    """A contender whose processes are ``python -m harness.bench.contenders.<module>``, one on each core.

    `helpers` names further processes, which train nothing. The last of them answers for all; the others are servers,
    which end with it. They have cores of their own only where there are enough.
    """

    module: str
    helpers: tuple[str, ...] = ()

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run the script on the first cores; all processes that answer must end with the same weights."""
        usable, count = physical_cores(), self.ranks + len(self.helpers)
        if len(usable) < self.ranks:
            raise RunError(f"needs {self.ranks} cores, this machine has {len(usable)}")
        addresses = tuple(f"localhost:{port}" for port in free_ports(count)) if count > 1 else ()
        own = usable if len(usable) >= count else [*usable[: self.ranks], *[()] * len(self.helpers)]
        places = [
            ProcessPlace(index=index, cpus=own[index], limit_s=limit_s + _ALARM_S, addresses=addresses)
            for index in reversed(range(count))
        ]
        words = [("-m", f"{_SCRIPTS}.{self.module}", _json(task), _json(place)) for place in places]
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
            servers = count - 1 if self.helpers else 0
            outputs = run_together(words, limit_s=limit_s, folder=Path(folder), servers=servers)
        answers = [_answer(output) for output in outputs]
        if len({answer.weights for answer in answers}) > 1:
            raise RunError("its processes ended with different weights: they were not synchronised")
        where = "had cores of their own" if places[0].cpus else "took turns with the workers on their cores"
        return combine_answers(
            answers, {self.title: f"its {' and '.join(self.helpers)} {where}"} if self.helpers else {}
        )


@dataclass(frozen=True, kw_only=True)
class Transparent(Contender):
    """The script of the contender `keras-fit`, unmodified, on ranks: ``harness run -n RANKS``."""

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run the script; that its ranks end with the same weights is checked by `harness run`."""
        usable = physical_cores()
        if len(usable) < self.ranks:
            raise RunError(f"needs {self.ranks} cores, this machine has {len(usable)}")
        place = ProcessPlace(index=0, cpus=() if self.ranks > 1 else usable[0], limit_s=limit_s + _ALARM_S)
        script = (str(_FOLDER / "keras_fit.py"), _json(task), _json(place))
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
            words = ("-m", "harness", "run", "-n", str(self.ranks), "--logs", folder, *script)
            (output,) = run_together([words], limit_s=limit_s, folder=Path(folder))
        return combine_answers([_answer(output)])


@dataclass(frozen=True, kw_only=True)
class Ours(Contender):
    """The harness itself, launched as a sweep launches it: point file, rendered script, record.

    `shipped` trains with the settings of the preset ``default``; `settings` are environment variables.
    """

    sync: str = "gradients"
    shipped: bool = False
    fast: bool = True
    settings: tuple[tuple[str, str], ...] = ()

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Launch one point and read its record; what makes its times invalid is the record's."""
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
            _run_job(scheduler, write_job(point, scheduler, folder=folder, data_dir=None), limit_s)
            record = read_run(folder / point.folder)
        library, reduction = record.provenance.mpi_library.split(",")[0], record.provenance.reduction
        return Timing(
            seconds=tuple(max(epoch.seconds) for epoch in record.epochs[WARM_UP_EPOCHS:]),
            loss=record.epochs[LOSS_EPOCH - 1].train_loss,
            invalid=record.invalid,
            details={"MPI library": library, "reduction": reduction} if self.ranks > 1 else {},
        )


@dataclass(frozen=True, kw_only=True)
class PartLaunch(Contender):
    """No training: what the part of that name takes of the steps of an epoch, by itself."""

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run `part_alone` on the ranks."""
        command = (sys.executable, "-m", f"{_SCRIPTS}.part_alone", _json(task), self.name)
        return combine_answers([_under_mpirun(self.ranks, command, limit_s)])


@dataclass(frozen=True, kw_only=True)
class Standalone(Contender):
    """A `script` that imports nothing of the harness, on ranks: FOLDER EPOCHS BATCH SEED RATE.

    `python` runs it, under the harness's mpirun, or with `own_mpi` under the one that lies beside that Python.
    `shipped` as in `Ours`.
    """

    script: str
    shipped: bool = False
    python: str = sys.executable
    own_mpi: bool = False

    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Run a copy of the script on the rows that all contenders train on."""
        task = replace(task, shipped=self.shipped)
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
            begin = time.monotonic()
            words = ("-m", f"{_SCRIPTS}.script", _json(task), folder)  # writes the files
            run_together([words], limit_s=limit_s, folder=Path(folder))
            script = shutil.copy(_FOLDER / self.script, folder)  # nothing else can be imported from beside it
            numbers = (WARM_UP_EPOCHS + task.epochs, task.batch_per_rank, task.seed, task.workload().learning_rate)
            command = (self.python, script, folder, *map(str, numbers))
            left_s = max(1, limit_s - int(time.monotonic() - begin))
            answer = _under_mpirun(self.ranks, command, left_s, beside=Path(self.python) if self.own_mpi else None)
        return combine_answers([answer], {self.title: answer.versions} if answer.versions else {})


def _under_mpirun(ranks: int, command: Sequence[str], limit_s: int, *, beside: Path | None = None) -> ContenderOutput:
    """Run `command` on this machine's ranks, by the mpirun `beside` a Python if given; return what rank 0 answers.

    Raises:
        RunError: it failed.
    """
    scheduler, layout = _local(ranks)
    launcher, changes = scheduler.launcher(layout).words, dict(scheduler.environment(layout))
    if beside:
        launcher = mpirun_words(beside.parent / "mpirun", "openmpi", ranks)
        changes |= AS_ROOT | ONE_THREAD
    reply = ask((*launcher, *command), limit_s=limit_s, changes=changes)
    if reply.code != 0:
        raise RunError(first_error(reply.err) or reply.last_error)
    return _answer(reply.out)


def _local(ranks: int) -> tuple[Scheduler, Layout]:
    """Return this machine's scheduler and the layout of `ranks` ranks of one core each, which it can run."""
    scheduler, layout = open_scheduler("local"), Layout(nodes=ranks)
    refusal = scheduler.refusal(layout)
    if refusal:
        raise RunError(refusal)
    return scheduler, layout


def _run_job(scheduler: Scheduler, job: Job, limit_s: int) -> None:
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


def combine_answers(answers: Sequence[ContenderOutput], details: Mapping[str, str] | None = None) -> Timing:
    """Return what the processes of a launch have answered: of every epoch the time of the slowest."""
    losses = [answer.losses[LOSS_EPOCH - 1] for answer in answers if answer.losses]
    if not all(math.isfinite(loss) for loss in losses):
        raise RunError("its loss is not a finite number")
    seconds = [max(epoch) for epoch in zip(*(answer.seconds for answer in answers), strict=True)]
    loss = mean(losses) if losses else None
    return Timing(seconds=tuple(seconds[WARM_UP_EPOCHS:]), loss=loss, details=dict(details or {}))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def run_together(arguments: Sequence[Sequence[str]], *, limit_s: float, folder: Path, servers: int = 0) -> list[str]:
    """Run one Python process for each of `arguments` and return what each wrote to standard output.

    The last `servers` of them are ended as soon as the others have, and return nothing. Logs go into `folder`. Each
    process leads a group of its own; no group outlives this call.

    Raises:
        RunError: a process ended with an error (its first error line), or not within `limit_s` seconds.
    """
    processes: list[subprocess.Popen[bytes]] = []
    outputs = [folder / f"{number}.out" for number in range(len(arguments))]
    errors = [path.with_suffix(".err") for path in outputs]
    try:
        for words, output, error in zip(arguments, outputs, errors, strict=True):
            with output.open("wb") as out, error.open("wb") as err:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *words],
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        env=os.environ | ONE_THREAD,
                        start_new_session=True,
                    )
                )
        _wait(processes, errors, limit_s, awaited=len(processes) - servers)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the group may outlive the process that leads it
            process.wait()
    return [path.read_text() for path in outputs[: len(processes) - servers]]


def _wait(
    processes: "Sequence[subprocess.Popen[bytes]]", errors: Sequence[Path], limit_s: float, *, awaited: int
) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        codes = [process.poll() for process in processes]
        for code, path in zip(codes, errors, strict=True):
            if code:
                raise RunError(first_error(read_output(path)) or f"ended with exit code {code}")
        if None not in codes[:awaited]:
            return
        if time.monotonic() > deadline:
            raise RunError(f"was not done within its limit of {limit_s:.0f} s")
        time.sleep(_POLL_S)


def free_ports(count: int) -> list[int]:
    """Return `count` TCP ports of this host that no process listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for entry in sockets:
            entry.bind(("localhost", 0))
        return [entry.getsockname()[1] for entry in sockets]


def physical_cores(topology: Path = _TOPOLOGY) -> list[tuple[int, ...]]:
    """Return the CPUs of every core that this process may use: hyper-threads of one core are grouped."""
    groups: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = topology / f"cpu{cpu}/topology/thread_siblings_list"
        try:
            core = siblings.read_text().strip()
        except OSError:
            core = str(cpu)
        groups.setdefault(core, []).append(cpu)
    return [tuple(group) for group in groups.values()]
