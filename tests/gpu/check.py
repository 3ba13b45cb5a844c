"""All that only a machine with a GPU can check: make gpu-check.

    python -m tests.gpu.check [--device cpu] [--limit S]

It needs at least one GPU, no network, and at most five minutes or S seconds; the folder may have been copied there. Two
ranks on one GPU are a test of function, never of speed. The exit code is 0 when nothing failed, 1 when something did, 2
without GPU. With ``--device cpu`` the same commands run on processors, small, so that only the device is untested.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.comm.gpus import visible_gpus
from harness.schema.record import RunRecord, read_run
from tests.gpu.table import Check, Failed, Skipped, Status, run_checks, table
from tests.mpi.launch import rank_command, rank_environment

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = HERE.parent / "scripts" / "fit_arrays.py"
LIMIT_S = 300.0
RATIO = 0.97  # of the bare loop's images per second
LOSSES = 1e-3  # most that losses of one and two ranks may differ, relative: float32, summed in another order


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the checks run: what is added to the commands of rank program, sweep and training, and how ranks sum, also
    one alone.

    ResNet-50 is trained on images of `size` pixels, `steps` steps an epoch; smaller networks as `Network` says.
    """

    rank_words: tuple[str, ...]
    sweep_words: tuple[str, ...]
    train_words: tuple[str, ...]
    way: str
    way_alone: str
    size: int
    steps: int


GPU = Place(
    rank_words=(),
    sweep_words=("--gpus", "1,2", "--ranks-per-node", "2", "--oversubscribe"),
    train_words=("--gpus-per-rank", "1"),
    way="nccl",
    way_alone="nccl",
    size=224,
    steps=60,
)
CPU = Place(
    rank_words=("cpu",),
    sweep_words=("--nodes", "1,2"),
    train_words=(),
    way="native",
    way_alone="messages",
    size=32,
    steps=2,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A network that is compared with the bare loop's, which is `bare` there; `words` are of `harness train`.

    Images have `size` pixels, None for the place's; an epoch has `steps` times the place's steps.
    """

    name: str
    bare: str
    words: tuple[str, ...]
    size: int | None = None
    steps: int = 1


_CNN = ("--model", "cnn", "--optimizer", "momentum")
NETWORKS = (
    Network(name="ResNet-50", bare="resnet50", words=("--dataset", "imagenet", "--model", "resnet50")),
    Network(name="MNIST-CNN", bare="cnn-mnist", words=("--dataset", "mnist", *_CNN), size=28, steps=20),
    Network(name="CIFAR10-CNN", bare="cnn-cifar10", words=("--dataset", "cifar10", *_CNN), size=32, steps=20),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One way to train a network: rows of a step, Keras's policy, and whether XLA compiles it."""

    batch: int
    precision: str
    xla: bool

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.precision}{', XLA' if self.xla else ''}"


# Those first that are told of: what time does not hold is skipped, and `--limit 3600` holds all.
SETTINGS = (
    Setting(batch=256, precision="mixed_float16", xla=True),
    Setting(batch=64, precision="mixed_float16", xla=True),
    Setting(batch=256, precision="float32", xla=True),
    Setting(batch=256, precision="mixed_bfloat16", xla=True),
    Setting(batch=256, precision="mixed_float16", xla=False),
    Setting(batch=64, precision="float32", xla=True),
    Setting(batch=64, precision="mixed_bfloat16", xla=True),
    Setting(batch=64, precision="mixed_float16", xla=False),
    Setting(batch=256, precision="float32", xla=False),
    Setting(batch=256, precision="mixed_bfloat16", xla=False),
    Setting(batch=64, precision="float32", xla=False),
    Setting(batch=64, precision="mixed_bfloat16", xla=False),
)
SMALL = (Setting(batch=2, precision="float32", xla=False),)


def answer(command: Sequence[str], seconds: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command for at most so many seconds and return what it printed; none that takes longer passes."""
    try:
        return subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env={**rank_environment(), "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"it did not end within {seconds:.0f} s") from error


def succeed(command: Sequence[str], seconds: float, **environment: str) -> str:
    """Return the standard output of a command that must succeed."""
    reply = answer(command, seconds, **environment)
    if reply.returncode != 0:
        lines = [line for line in (reply.stderr + reply.stdout).splitlines() if line.strip()]
        spoken = [line for line in lines if line.startswith("harness: ")] or lines[-1:] or ["nothing"]
        raise Failed(f"exit code {reply.returncode}: {spoken[0]}")
    return reply.stdout


def of_ranks(place: Place, task: str, ranks: int, seconds: float) -> dict[str, Any]:
    """Return what tests/gpu/ranks.py says of a task on so many ranks of the one GPU, summing by NCCL."""
    words = [*rank_command(ranks), HERE / "ranks.py", task, *place.rank_words]
    printed = succeed(words, seconds, NCCL_SOCKET_IFNAME="lo")
    found: dict[str, Any] = json.loads(printed.partition("RESULT ")[2].partition("\n")[0])
    if found["way"] != (place.way if ranks > 1 else place.way_alone):
        raise Failed(f"the ranks sum by {found['name']}: {'; '.join(found['notes'])}")
    return found


def check_sums(place: Place, ranks: int, seconds: float) -> str:
    """Compare NCCL's sums of four types, plain and scaled, with MPI's: to one unit in the last place."""
    found = of_ranks(place, "sums", ranks, seconds)
    units = found["units"]
    wrong = {name: value for name, value in units.items() if value > 1}
    if wrong:
        raise Failed(f"off by units in the last place: {wrong}")
    exact = sum(value == 0 for value in units.values())
    return (
        f"{found['name']}: {exact} of {len(units)} bit for bit, the others within 1 unit; {found['ms']:.2f} ms a call"
    )


def check_order(place: Place, seconds: float) -> str:
    """Have two ranks sum by NCCL and by MPI in turn, in a loop of a graph."""
    error = of_ranks(place, "order", 2, seconds)["error"]
    if error > 1e-5:
        raise Failed(f"the mean over the ranks is off by {error}")
    return "30 sums on the device and 30 on the host, in turn"


def check_words(place: Place, seconds: float) -> str:
    """Compare what Horovod's words make on two ranks, in a graph and at once, with what they must."""
    found = of_ranks(place, "words", 2, seconds)
    wrong = {name: error for name, error in found["errors"].items() if error > 1e-6}
    if wrong:
        raise Failed(f"off by {wrong}")
    if set(found["ways"]) != {place.way}:
        raise Failed(f"sums in a graph went by {', '.join(found['ways'])}")
    return f"{len(found['errors'])} results; sums in a graph by {place.way}, the others through the host"


def check_loss(place: Place, seconds: float) -> str:
    """Kill a rank between two sums: all must end, with a code that says so."""
    begin = time.monotonic()
    reply = answer([*rank_command(2), HERE / "ranks.py", "loss", *place.rank_words], seconds, NCCL_SOCKET_IFNAME="lo")
    if reply.returncode == 0:
        raise Failed("the launch ended with code 0")
    return f"all ended with code {reply.returncode}, {time.monotonic() - begin:.0f} s after the start"


def check_script(place: Place, folder: Path, seconds: float) -> str:
    """Train an unmodified Keras script on one rank and on two of the one GPU, on the same global batches."""
    results = folder / "script"
    words = ["sweep", "--script", SCRIPT, *place.sweep_words, "--script-batch", "global", "--repeats", "1"]
    words += ["--results", results, "--reports", folder / "reports"]
    reduction = {"HARNESS_REDUCTION": place.way, "NCCL_SOCKET_IFNAME": "lo"}
    succeed([sys.executable, "-m", "harness", *words], seconds, **reduction)
    runs = [read_run(path.parent) for path in results.rglob("run.json")]
    return same_losses(runs, place.way)


def same_losses(runs: Sequence[RunRecord], way: str = GPU.way) -> str:
    """Return how near the last training losses of launches of 1 and 2 ranks are; two ranks must sum by NCCL."""
    losses = {run.point.layout.ranks: run.epochs[-1].train_loss for run in runs}
    if sorted(losses) != [1, 2]:
        raise Failed(f"there are records of {sorted(losses)} ranks, not of 1 and 2")
    ways = {run.provenance.algorithm for run in runs if run.point.layout.ranks == 2}
    if ways != {way}:
        raise Failed(f"two ranks sum by {', '.join(ways)}")
    first, second = losses[1], losses[2]
    if first is None or second is None or abs(second / first - 1) > LOSSES:
        raise Failed(f"the losses are {first} and {second}")
    return f"losses {first:.6g} and {second:.6g}"


def check_ratio(place: Place, network: Network, setting: Setting, folder: Path, seconds: float) -> str:
    """Compare images per second of the harness's network with a bare loop's."""
    ours, bare = rates(place, network, setting, folder, seconds)
    sentence = f"{ours:.0f} images/s, bare {bare:.0f}: {ours / bare:.2f}"
    if ours < RATIO * bare:
        raise Failed(f"{sentence}, below {RATIO}")
    return sentence


def rates(place: Place, network: Network, setting: Setting, folder: Path, seconds: float) -> tuple[float, float]:
    """Return the images per second of the harness and of the bare loop, one after the other."""
    begin = time.monotonic()
    steps = network.steps * place.steps
    numbers = (setting.batch, steps, network.size or place.size, setting.precision, int(setting.xla))
    printed = succeed([sys.executable, HERE / "bare.py", network.bare, *numbers], seconds)
    bare = float(printed.partition("RATE ")[2].split()[0])
    record = folder / f"train, {network.name}, {setting}"
    words = ["train", *network.words, "--data-kind", "synthetic", *place.train_words]
    words += [] if network.size else ["--image-size", place.size]
    words += ["--samples", setting.batch * steps, "--batch-per-rank", setting.batch]
    words += ["--epochs", "3", "--precision", setting.precision, "--xla" if setting.xla else "--no-xla"]
    left = seconds - (time.monotonic() - begin)
    succeed([*rank_command(1), "-m", "harness", *words, "--record", record], left)
    return images_per_second(read_run(record)), bare


def images_per_second(run: RunRecord) -> float:
    """Return the images per second of the fastest epoch but the first."""
    rates = [epoch.steps * run.global_batch / max(epoch.seconds) for epoch in run.epochs[1:]]
    return max(rates)


def check_energy(folder: Path, seconds: float) -> str:
    """Return the energy of a launch before by NVML's counter, from its record."""
    records = sorted(folder.glob("train*/run.json"))
    if not records:
        raise Skipped("it is read in the record of a launch before, which is not there")
    return energy_words(read_run(records[0].parent))


def energy_words(run: RunRecord) -> str:
    """Return energy and mean power of a launch's GPU, whose counter must have risen."""
    gpus = [device for device in run.energy if device.is_gpu]
    if not gpus:
        raise Failed(f"the record has no energy of a GPU: {'; '.join(map(str, run.notes))}")
    gpu = gpus[0]
    if gpu.joules is None or gpu.watts is None:
        raise Skipped(f"the driver does not count {', '.join(gpu.missing) or 'long enough'}")
    sentence = f"{gpu.joules:.0f} J, {gpu.watts:.0f} W"
    if gpu.joules <= 0:
        raise Failed(sentence)
    return sentence


def all_checks(place: Place, folder: Path) -> list[Check]:
    """Return the checks in their order, the cheap ones first; `folder` takes what they write."""
    settings = SETTINGS if place is GPU else SMALL
    first, *others = [ratio_of(place, network, setting, folder) for setting in settings for network in NETWORKS]
    return [
        Check(name="sums of one rank", seconds=20, run=lambda left: check_sums(place, 1, min(left, 60))),
        Check(name="sums of two ranks", seconds=20, run=lambda left: check_sums(place, 2, min(left, 60))),
        Check(name="order of exchanges", seconds=20, run=lambda left: check_order(place, min(left, 60))),
        Check(name="Horovod's words", seconds=20, run=lambda left: check_words(place, min(left, 120))),
        Check(name="loss of a rank", seconds=20, run=lambda left: check_loss(place, min(left, 60))),
        Check(name="unmodified script", seconds=40, run=lambda left: check_script(place, folder, min(left, 240))),
        first,
        Check(name="energy", seconds=1, run=lambda left: check_energy(folder, left)),
        *others,
    ]


def ratio_of(place: Place, network: Network, setting: Setting, folder: Path) -> Check:
    """Return the check of a network's ratio to the bare loop in one setting."""
    return Check(
        name=f"ratio to bare loop: {network.name}, {setting}",
        seconds=60 if network.steps == 1 else 30,
        run=lambda left: check_ratio(place, network, setting, folder, left),
    )


def find_place(device: str) -> Place | None:
    """Return where to check, having named it; None where there is no GPU, having said so."""
    if device == "cpu":
        print("on processors: the commands are checked, no GPU is", flush=True)
        return CPU
    try:
        gpus = visible_gpus()
    except UserError as error:
        print(f"there is no GPU to check here: {error}", file=sys.stderr)
        return None
    if not gpus:
        print("there is no GPU to check here: CUDA_VISIBLE_DEVICES names none", file=sys.stderr)
        return None
    for gpu in gpus:
        print(gpu, flush=True)
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0].uuid  # all checks are of one GPU
    return GPU


def main() -> int:
    """Print a line for every check as it ends, then the table; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    asked = parser.parse_args()
    place = find_place(asked.device)
    if place is None:
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        rows = run_checks(all_checks(place, Path(name)), asked.limit)
    print(table(rows))
    return int(any(row.status is Status.FAILED for row in rows))


if __name__ == "__main__":
    sys.exit(main())
