"""The registry of contenders: who trains the same network on the same data, and how each is launched.

A new one is one entry of `CONTENDERS`: a script of its own (`ScriptContender`), a sync policy of the harness
(`Ours`), or a class with the same attributes and `launch`.
"""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Protocol

from harness.base.errors import unknown
from harness.bench.launches import Ours, PartLaunch, ScriptContender, Standalone, Timing, Transparent
from harness.bench.plan import Task


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


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        ScriptContender(name="keras-fit", title="Keras fit, 1 rank", module="keras_fit", ranks=1),
        Transparent(name="transparent-1", title="harness run, 1 rank", ranks=1),
        Ours(name="ours-1", title="ours, 1 rank", ranks=1),
        Ours(name="summing-1", title="ours summing alone, 1 rank", ranks=1, settings=(("HARNESS_SYNC_ALONE", "1"),)),
        ScriptContender(name="mwms", title="MWMS, 2 workers", module="mwms", ranks=2),
        ScriptContender(
            name="parameter-server",
            title="ParameterServerStrategy, 2 workers, asynchronous",
            module="parameter_server",
            ranks=2,
            helpers=("server", "coordinator"),
        ),
        Standalone(name="ddp", title="PyTorch DDP, 2 ranks", script="ddp.py", ranks=2, package="torch"),
        Standalone(
            name="horovod", title="Horovod, 2 ranks", script="horovod_step.py", ranks=2, package="horovod", own_mpi=True
        ),
        Transparent(name="transparent", title="harness run, 2 ranks", ranks=2),
        Ours(name="gradients", title="ours gradients, 2 ranks", ranks=2),
        Ours(name="weights-epoch", title="ours weights:epoch, 2 ranks", ranks=2, sync="weights:epoch"),
        Ours(name="none", title="ours none, 2 ranks", ranks=2, sync="none"),
        Standalone(name="bare", title="bare TensorFlow, 2 ranks", script="bare.py", ranks=2, fast=True),
        Ours(name="default", title="ours none, default settings, 2 ranks", ranks=2, sync="none", shipped=True),
        Standalone(
            name="bare-default",
            title="bare TensorFlow, default settings, 2 ranks",
            script="bare.py",
            ranks=2,
            shipped=True,
            fast=True,
        ),
        PartLaunch(name="raw-sums", title="MPI_Allreduce alone, 2 ranks", module="raw_sums", ranks=2),
        PartLaunch(name="recording", title="recording alone, 2 ranks", module="recording", ranks=2),
    )
}


def choose(contenders: Mapping[str, Contender], names: Collection[str], pythons: Mapping[str, str]) -> list[Contender]:
    """Return those of `contenders` that are among `names`; without `names`, all whose own package is installed.

    `pythons` has a Python of its own for some, by name: a path, or a program on PATH.

    Raises:
        UserError: a name is not a contender's.
    """
    for name in names:
        if name not in contenders:
            raise unknown("CONTENDERS", name, contenders)
    found: list[Contender] = []
    for name, one in contenders.items():
        if name in pythons and isinstance(one, Standalone):
            python = shutil.which(pythons[name]) or pythons[name]  # its mpirun lies beside the program itself
            found.append(replace(one, python=python, package=""))
        else:
            found.append(one)
    return [one for one in found if (one.name in names if names else is_installed(one))]


def is_installed(contender: Contender) -> bool:
    """Tell whether the package that `contender` needs, if any, is installed for this Python."""
    return not contender.package or find_spec(contender.package) is not None
