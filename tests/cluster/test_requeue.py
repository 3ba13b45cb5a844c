"""Jobs that a real Slurm warns before their time limit, or whose node is lost, go back into the queue and go on."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.schema.record import read_run
from harness.sweep.jobs import JOBS
from harness.train.checkpoint import CHECKPOINTS
from tests.cluster.conftest import Terminal
from tests.cluster.slurm import Cluster, wait_for
from tests.cluster.test_faults import finish, node_of
from tests.cluster.test_sweeps import records

pytestmark = [pytest.mark.cluster, pytest.mark.mpi, pytest.mark.timeout(300)]
LONG = (
    "sweep", "--dataset", "adult", "--data-kind", "synthetic", "--samples", "6400", "--epochs", "150", "--nodes", "1",
    "--repeats", "1", "--checkpoint", "150", "--requeue", "--signal", "60", "--walltime", "0:10:00",
)  # fmt: skip


@pytest.mark.parametrize("end", ["a warning", "a lost node"])
def test_an_interrupted_job_goes_on_by_itself_to_the_weights_of_the_undisturbed(
    terminal: Terminal, cluster: Cluster, tmp_path: Path, end: str
) -> None:
    sweep = terminal.begin(*LONG)
    wait_for(lambda: any(terminal.results.glob(f"*/{CHECKPOINTS}/*/*.ckpt")), "a checkpoint", 60)
    (job,) = cluster.ask("squeue", "-h", "-o", "%i").split()
    node = node_of(cluster, job)
    if end == "a warning":
        cluster.ask("scancel", "--signal=USR1", "--batch", job)
    else:
        cluster.set_node(node, "down")
    wait_for(lambda: cluster.ask("squeue", "-h", "-t", "pending", "-o", "%i").split() == [job], "a place in the queue")
    wait_for(
        lambda: not any(one.info["name"] == "slurmstepd" for one in psutil.process_iter(["name"])),
        "its last step's end",
        60,
    )
    cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")  # which Slurm puts off by two minutes
    said = finish(sweep)
    assert sweep.returncode in (0, 3), said
    (record,) = records(terminal).values()
    first, second = record.segments
    assert first.stopped == "SIGUSR1" or end == "a lost node"  # whose ranks Slurm asks to end, and kills in a second
    assert not first.stopped or not second.redone

    point = next((terminal.sweep_folder / JOBS).glob("*.json"))
    whole = [sys.executable, "-m", "harness", "train", "--point", str(point), "--record", str(tmp_path / "whole")]
    subprocess.run(whole, env=terminal.environment, cwd=terminal.folder, check=True, timeout=100)
    undisturbed = read_run(tmp_path / "whole")
    assert not undisturbed.segments
    assert record.weights.sha256 == undisturbed.weights.sha256
