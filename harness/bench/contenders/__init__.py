"""Who trains what: the `Task`, the `CONTENDERS`, and a script for each that has one of its own.

To add a contender, write its script in this folder and one entry of `CONTENDERS`. A script takes turns by a few lines:
`harness.base.turns.join_turns` before its first step, `step` in every one.
"""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec

from harness.base.errors import unknown
from harness.schema.workload import Workload

BATCH_PER_RANK = 64
LEARNING_RATE = 0.1
_WITHOUT_END = 100_000  # epochs: the end of the block ends them


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A network and its data, for plain SGD on one thread per rank.

    `rows` are synthetic training rows over all ranks; every rank trains on an equal part of them, again and again until
    its block ends.
    """

    dataset: str
    model: str
    rows: int
    batch_per_rank: int = BATCH_PER_RANK
    learning_rate: float = LEARNING_RATE
    seed: int = 0

    @property
    def name(self) -> str:
        """The workload's name, ``mnist-dnn``."""
        return f"{self.dataset}-{self.model}"

    def workload(self, sync: str = "gradients") -> Workload:
        """Return the harness's own description of this task, by the policy `sync`: whole batches of synthetic rows."""
        return Workload(
            dataset=self.dataset,
            model=self.model,
            batch_per_rank=self.batch_per_rank,
            drop_remainder=True,
            epochs=_WITHOUT_END,
            samples=self.rows,
            seed=self.seed,
            data="synthetic",
            optimizer="sgd",
            learning_rate=self.learning_rate,
            sync=sync,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A program that trains: its `name` in records, the `title` of its row, how many `ranks` train, one on each core.

    `script` is its file in this folder. It is a `module` of the harness, or one that imports nothing of the harness and
    is run from a copy by `python`; under `transparent` it is run, unmodified, by ``harness run``. Without one it is the
    harness itself with the policy `sync`. `helpers` are further processes, which train nothing; `package` is what it
    needs beyond the harness's own; with `own_mpi` the mpirun beside its Python starts it; `options` are its script's.
    """

    name: str
    title: str
    ranks: int
    script: str = ""
    module: bool = False
    transparent: bool = False
    sync: str = "none"
    helpers: int = 0
    package: str = ""
    python: str = ""
    own_mpi: bool = False
    options: tuple[str, ...] = ()


# What the others are compared with; by their ranks.
BARE = {1: "bare-1", 2: "bare"}
OURS = {1: "ours-1", 2: "gradients"}
BOUND = "bound"
CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender(name="bare-1", title="bare TensorFlow, 1 rank", script="bare.py", ranks=1),
        Contender(name="ours-1", title="harness, 1 rank", ranks=1),
        Contender(name="keras-fit", title="Keras fit, 1 rank", script="keras_fit.py", module=True, ranks=1),
        Contender(name="bare", title="bare TensorFlow, 2 ranks", script="bare.py", ranks=2),
        Contender(
            name="bound", title="reference: bare, then MPI_Allreduce", script="bare.py", ranks=2, options=("allreduce",)
        ),
        Contender(name="none", title="harness none, 2 ranks", ranks=2),
        Contender(name="gradients", title="harness gradients, 2 ranks", ranks=2, sync="gradients"),
        Contender(name="weights-epoch", title="harness weights:epoch, 2 ranks", ranks=2, sync="weights:epoch"),
        Contender(
            name="run", title="harness run, 2 ranks", script="keras_fit.py", module=True, transparent=True, ranks=2
        ),
        Contender(
            name="horovod-run",
            title="harness run of Horovod's script, 2 ranks",
            script="horovod_step.py",
            transparent=True,
            ranks=2,
        ),
        Contender(
            name="mwms",
            title="MultiWorkerMirroredStrategy, 2 workers",
            script="strategies.py",
            module=True,
            options=("mirrored",),
            ranks=2,
        ),
        Contender(
            name="parameter-server",
            title="ParameterServerStrategy, 2 workers, asynchronous",
            script="strategies.py",
            module=True,
            options=("served",),
            ranks=2,
            helpers=2,
        ),
        Contender(name="ddp", title="PyTorch DDP, 2 ranks", script="ddp.py", ranks=2, package="torch"),
        Contender(
            name="horovod", title="Horovod, 2 ranks", script="horovod_step.py", ranks=2, package="horovod", own_mpi=True
        ),
    )
}


def choose_contenders(
    names: Collection[str], pythons: Mapping[str, str], cores: int
) -> tuple[list[Contender], dict[str, str]]:
    """Return the contenders among `names`, by default all, and why others stay out.

    `pythons` has a Python of its own for some, by name: a path, or a program on PATH. What the asked ones are compared
    with takes part unasked.

    Raises:
        UserError: a name is not a contender's.
    """
    for name in names:
        if name not in CONTENDERS:
            raise unknown("contender", name, CONTENDERS)
    wanted = {*names, *(BARE[CONTENDERS[name].ranks] for name in names)} or set(CONTENDERS)
    chosen = []
    left_out = {}
    for name, contender in CONTENDERS.items():
        if name not in wanted:
            continue
        if name in pythons:
            python = shutil.which(pythons[name]) or pythons[name]  # its mpirun lies beside the program itself
            contender = replace(contender, python=python, package="")
        reason = _why_left_out(contender, cores)
        if reason:
            left_out[name] = f"{contender.title} is left out: {reason}"
        else:
            chosen.append(contender)
    return chosen, left_out


def _why_left_out(contender: Contender, cores: int) -> str:
    """Return why `contender` cannot run here, empty if it can."""
    if contender.package and find_spec(contender.package) is None:
        option = {"ddp": "--torch-python"}.get(contender.name, f"--{contender.name}-python")
        return f"{contender.package} is not installed; give {option} PATH of a Python with it"
    if contender.ranks > cores:
        return f"it needs {contender.ranks} cores, this machine has {cores}"
    return ""
