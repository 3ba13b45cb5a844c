"""How the contenders of a block are started: their inputs, and the words and environment of each one's ranks."""

import contextlib
import random
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness import datasets
from harness.base import first_epoch, turns
from harness.base.errors import RunError
from harness.base.files import write_atomic
from harness.base.first_epoch import FIRST_EPOCH
from harness.base.processes import ONE_THREAD, run_program
from harness.bench.contenders import Contender, Task
from harness.comm.mpi_library import AS_ROOT, mpi_version
from harness.schema.code_identity import code_identity
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import encode
from harness.sweep.launch_command import mpirun_words
from harness.sweep.launch_output import first_error
from harness.sweep.schedulers import open_scheduler
from harness.sweep.turn_block import LaunchSpec

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
            family = "mpich" if "-bind-to" in launcher else "openmpi"
            launcher = mpirun_words(program, family, contender.ranks + contender.helpers, oversubscribe=True)
        elif contender.own_mpi:
            launcher = mpirun_words(Path(contender.python).parent / "mpirun", "openmpi", contender.ranks)
            changes |= AS_ROOT
        return LaunchSpec(
            name=contender.name,
            words=(*launcher, *self._program(contender, layout)),
            log=str(self.log(contender)),
            changes=changes | ONE_THREAD | {FIRST_EPOCH: str(self._first_epoch(contender))},
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
            return (self.python, "-m", "harness.transparent", *logs, script, *words)
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
