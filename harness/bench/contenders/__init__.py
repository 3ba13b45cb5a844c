"""Who trains the same network on the same data: `CONTENDERS`, and a script for each that has one of its own.

To add a contender, write its script in this folder and one entry of `CONTENDERS`, which says how it is launched.
"""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec

from harness.base.errors import unknown
from harness.bench.bench_record import Contender
from harness.bench.launches import Ours, PartLaunch, ScriptContender, Standalone, Transparent

CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        ScriptContender(name="keras-fit", title="Keras fit, 1 rank", module="keras_fit", ranks=1),
        Transparent(name="transparent-1", title="harness run, 1 rank", ranks=1),
        Ours(name="ours-1", title="ours, 1 rank", ranks=1),
        Ours(
            name="summing-1",
            title="ours with allreduce, 1 rank",
            ranks=1,
            settings=(("HARNESS_SYNC_ALONE", "1"),),
        ),
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
        PartLaunch(name="raw-sums", title="MPI_Allreduce alone, 2 ranks", ranks=2),
        PartLaunch(name="recording", title="recording alone, 2 ranks", ranks=2),
    )
}


def choose_contenders(
    contenders: Mapping[str, Contender], names: Collection[str], pythons: Mapping[str, str]
) -> list[Contender]:
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
    """Return whether the package that `contender` needs, if any, is installed for this Python."""
    return not contender.package or find_spec(contender.package) is not None
