"""Slurm on hosts with names and addresses of their own: two nodes train over a network with a delay."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from harness.schema.record import read_run
from harness.schema.sweep_folder import STEPS_FILE, SweepFolder
from tests.cluster import slurm
from tests.cluster.conftest import Terminal, open_terminal
from tests.cluster.slurm import Cluster, running
from tests.hosts import lab
from tests.hosts.lab import hosts
from tests.labs.slurm_sweeps import TINY, nodes_of, records
from tests.mpi.launch import ROOT

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.mpi,
    pytest.mark.alone,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why := slurm.missing() or lab.missing()), reason=f"Slurm on emulated hosts: {why}"),
]
_DELAY_S = 0.002
_SITE = """\
note = "Hosts that share this machine's cores"
binding = "none"
network = "eth0"

[environment]
OMPI_MCA_pml = "ob1"
OMPI_MCA_btl = "self,sm,tcp"
OMPI_MCA_mpi_yield_when_idle = "1"
"""


@pytest.fixture(scope="module")
def far_apart() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    (folder / "lab").mkdir()
    try:
        with hosts(2, folder / "lab") as found, running(folder, nodes=2, lab=found) as cluster:
            found.network(delay_s=_DELAY_S)
            yield cluster
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def far_terminal(far_apart: Cluster, tmp_path: Path) -> Iterator[Terminal]:
    yield open_terminal(far_apart, tmp_path, _SITE)
    far_apart.heal()


# Jobs by mpirun and a block by srun: on hosts of one address `test_sweeps` starts jobs by srun and a block by mpirun.
def test_two_hosts_train_and_the_record_says_where_and_how_long_the_network_took(far_terminal: Terminal) -> None:
    said = far_terminal.harness(*TINY, "--nodes", "1,2", "--repeats", "1", "--launcher", "mpirun", "--mode", "jobs")
    assert "1 machine by name" not in said
    found = records(far_terminal)
    assert {count: nodes_of(record) for count, record in found.items()} == {1: ["n1"], 2: ["n1", "n2"]}
    assert [rank.host for rank in found[2].ranks] == ["n1", "n2"]
    assert found[2].weights.identical and "mpirun" in found[2].provenance.launcher
    steps = pd.read_parquet(far_terminal.sweep_folder / found[2].point.folder / STEPS_FILE)
    assert steps["wire_s"].median() > _DELAY_S  # a sum takes a message at least
    assert steps["wire_s"].median() < 20 * _DELAY_S


def test_a_block_has_its_turns_over_the_network(far_terminal: Terminal, far_apart: Cluster) -> None:
    launcher = "srun --mpi=pmix"
    before = len(far_apart.jobs())
    size = ("--samples", "6400", "--epochs", "10", "--nodes", "1,2", "--repeats", "1")
    far_terminal.harness(*TINY, *size, "--launcher", launcher)
    assert len(far_apart.jobs()) - before == 1
    found = records(far_terminal)
    assert {count: nodes_of(record) for count, record in found.items()} == {1: ["n1"], 2: ["n1", "n2"]}
    assert all(launcher in record.provenance.launcher and record.weights.identical for record in found.values())
    (file,) = SweepFolder(far_terminal.sweep_folder).rounds.iterdir()
    assert {record.block for record in found.values()} == {file.stem}
    turns = pd.read_parquet(file)
    whole = turns.groupby("round")["launch"].nunique()
    assert (whole == 2).sum() > 5
    of_step = (turns["seconds"] / turns["steps"]).groupby(turns["launch"]).median()
    assert of_step[found[2].point.folder] > of_step[found[1].point.folder] + _DELAY_S


def test_a_node_that_fails_its_start_check_is_named_and_fewer_nodes_are_measured(
    far_terminal: Terminal, far_apart: Cluster
) -> None:
    assert far_apart.lab is not None
    python = str(Path(sys.executable).resolve())
    on_n2 = far_apart.lab.enter("n2")
    subprocess.run([*on_n2, "mount", "--bind", "/bin/false", python], check=True)
    try:
        said = far_terminal.harness(*TINY, "--nodes", "1,2", "--repeats", "1", code=1)
    finally:
        subprocess.run([*on_n2, "umount", python], check=True)
    assert "n2 failed the check at the start of the job" in said
    assert {count: nodes_of(record) for count, record in records(far_terminal).items()} == {1: ["n1"]}
    status = far_terminal.harness("status")
    assert "1 failed" in status and "n2 failed the check" in status


SCRIPT = ROOT / "tests" / "scripts" / "fit_arrays.py"
RUN = ("-m", "harness", "run", "-n", "2", "--unjudged", "--record", "record", str(SCRIPT))
OPEN_MPI = {"OMPI_MCA_btl_tcp_if_include": "eth0", "PRTE_MCA_prte_if_include": "eth0"}


def check_run(folder: Path, said: str) -> None:
    """Check that the script's only run in `folder` trained one model on two hosts."""
    record = read_run(folder / "record")
    assert [rank.host for rank in record.ranks] == ["n1", "n2"], said
    assert record.weights.identical and record.epochs


@pytest.mark.parametrize("way", [("salloc",), ("sbatch", "--wait", "--output=job.out")], ids=["salloc", "batch job"])
def test_a_script_in_a_job_runs_on_the_nodes_of_that_job(
    far_terminal: Terminal, far_apart: Cluster, way: tuple[str, ...]
) -> None:
    folder = far_terminal.folder
    (folder / "job.sh").write_text(f"#!/bin/bash\nexec {shlex.join([sys.executable, *RUN])}\n")
    words = [*way, "--nodes=2", "--exclusive", *(("bash",) if way[0] == "salloc" else ()), "job.sh"]
    ended = subprocess.run(
        far_apart.on("n1", words, folder),
        cwd=folder,
        env=far_terminal.environment | tomllib.loads(_SITE)["environment"] | OPEN_MPI,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    output = folder / "job.out"
    said = ended.stdout + ended.stderr + (output.read_text() if output.exists() else "")
    assert ended.returncode == 0, said
    check_run(folder, said)


def test_a_script_in_a_pbs_job_runs_on_the_nodes_of_that_job(far_terminal: Terminal, far_apart: Cluster) -> None:
    """Variables and node file are those of OpenPBS 23.06; pbs_tmrsh is a double that enters the hosts."""
    assert far_apart.lab is not None
    folder = far_terminal.folder
    (folder / "nodes").write_text("n1\nn1\nn2\nn2\n")
    cases = [f'{name}) exec {shlex.join(far_apart.lab.enter(name, folder))} "$@" ;;' for name in ("n1", "n2")]
    tmrsh = folder / "pbs_tmrsh"
    tmrsh.write_text("\n".join(["#!/bin/sh", "host=$1", "shift", 'case "$host" in', *cases, "esac", ""]))
    tmrsh.chmod(0o755)
    job = {"PBS_JOBID": "7.head", "PBS_ENVIRONMENT": "PBS_INTERACTIVE", "PBS_NODEFILE": str(folder / "nodes")}
    environment = far_terminal.environment | tomllib.loads(_SITE)["environment"] | OPEN_MPI | job
    ended = subprocess.run(
        far_apart.on("n1", [sys.executable, *RUN], folder),
        cwd=folder,
        env=environment | {"NCPUS": "2", "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check_run(folder, ended.stderr)
