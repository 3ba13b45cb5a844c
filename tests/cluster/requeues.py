"""Launches that a real Slurm interrupts and starts again by itself: what they train, held against one left alone.

``python -m tests.cluster.requeues --each 5`` starts a Slurm of as many nodes and interrupts real trainings on it: by
the warning signal (`scancel --signal`), by their time limit, by nodes set down. Each must come to its end without a
command and with the weights of the undisturbed launch, bit for bit.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.comm.mpi_library import AS_ROOT
from harness.schema.record import RunRecord, read_run
from tests.cluster.slurm import Cluster, missing, running, wait_for

_TRAINING = (
    *("--dataset", "adult", "--data-kind", "synthetic", "--samples", "100000", "--seed", "1", "--checkpoint", "2000"),
    *("--scheduler", "slurm", "--launcher", "mpirun", "--nodes", "1", "--site", "shared.toml", "--requeue"),
)
_BEGINS_S, _ENDS_S = 120.0, 900.0  # five trainings share this machine's cores
_WAYS = {"signal": ("--walltime", "0:20:00"), "limit": ("--walltime", "0:02:00"), "node": ("--walltime", "0:20:00")}


def campaign(cluster: Cluster, folder: Path, ways: Sequence[str], each: int, epochs: int, chance: random.Random) -> int:
    """Interrupt `each` launches in each of `ways`; print what came of them and return how many ways are at fault."""
    (folder / "shared.toml").write_text('note = "Several slurmd on one machine"\nbinding = "none"\n')
    alone = _launches(cluster, folder, "alone", 1, epochs, chance)[0]
    faults = 0
    for way in ways:
        begin = time.monotonic()
        found = _launches(cluster, folder, way, each, epochs, chance)
        same = sum(run.weights.sha256 == alone.weights.sha256 for run in found)
        again = [len(run.segments) - 1 for run in found]
        redone = [sum(segment.redone for segment in run.segments) for run in found]
        whole = same == each and min(again) > 0
        faults += not whole
        print(
            f"{way}: {len(found)} of {each} ended, {same} bit for bit the undisturbed weights; taken up {again} "
            f"times, {redone} steps made again; {time.monotonic() - begin:.0f} s"
            f"{'' if whole else ': NOT AS IT SHOULD BE'}",
            flush=True,
        )
        for log in () if whole else sorted((folder / way).glob("*/logs/*.*")):
            print(f"--- {log.name}", log.read_text(errors="replace")[-2000:], sep="\n")
    return faults


def _launches(
    cluster: Cluster, folder: Path, way: str, count: int, epochs: int, chance: random.Random
) -> list[RunRecord]:
    words = ("--results", way, "--repeats", str(count), "--epochs", str(epochs), "--signal", "45", *_WAYS.get(way, ()))
    environment = os.environ | AS_ROOT | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with (folder / f"{way}.txt").open("w") as said:
        sweep = subprocess.Popen(
            (sys.executable, "-m", "harness", "sweep", *_TRAINING, *words),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        if way in ("signal", "node"):
            written = folder / way
            wait_for(lambda: len(_trained(written)) >= count, f"{count} checkpoints", _BEGINS_S)
            for line in cluster.ask("squeue", "-h", "-r", "-t", "running", "-o", "%i %N").splitlines():
                _interrupt(cluster, way, *line.split())
                time.sleep(chance.uniform(0, 3))
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.wait(_ENDS_S)
    finally:
        sweep.kill()
        sweep.wait()
        for name, state in cluster.states().items():
            if state.startswith(("down", "drain")):
                cluster.set_node(name, "resume")
    runs = [read_run(path.parent) for path in sorted((folder / way).glob("*/*/run.json"))]
    if len(runs) < count:
        print((folder / f"{way}.txt").read_text()[-3000:])
    return runs


def _trained(results: Path) -> set[Path]:
    """Return the folders of the launches that have a checkpoint."""
    return {path.parent for path in results.glob("*/checkpoints/*/[!.]*.ckpt")}


def _interrupt(cluster: Cluster, way: str, job: str, node: str) -> None:
    if way == "signal":
        cluster.ask("scancel", "--signal=USR1", "--batch", job)
        return
    cluster.set_node(node, "down")
    time.sleep(2)
    cluster.set_node(node, "resume")


def main() -> int:
    """Start the cluster and interrupt; exit code 1 where a launch did not come to the same end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=list(_WAYS))
    parser.add_argument("--each", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if why := missing():
        sys.exit(why)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster ends with it
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "user").mkdir()
        with running(folder, nodes=options.each, own_hosts=True) as cluster:
            os.environ["SLURM_CONF"] = str(cluster.config)
            chance = random.Random(options.seed)
            return bool(campaign(cluster, folder / "user", options.ways, options.each, options.epochs, chance))


if __name__ == "__main__":
    sys.exit(main())
