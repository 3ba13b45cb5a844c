"""`harness run` inside a job that a user has opened: slots are this host's cores, other nodes are told of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.cores import usable_cores
from harness.schema.layout import Layout
from harness.sweep.allocation import Allocation, cores_here, current_allocation, spread_ranks
from harness.sweep.schedulers import choose_scheduler, open_scheduler, scheduler_class
from harness.sweep.site import Site
from tests.labs.factories import make_job
from tests.labs.sentences import refuses, says
from tests.labs.sweep_lab import wait_for
from tests.mpi.launch import ROOT

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "1",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_JOB_CPUS_PER_NODE": "2",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_NODELIST": "n1",
}
SEVERAL = SLURM | {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "nid[0001,0007]", "SLURM_NODELIST": "nid[0001,0007]"}
STEP = SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"}
PBS = {"PBS_JOBID": "7.head", "PBS_ENVIRONMENT": "PBS_INTERACTIVE", "NCPUS": "2"}
LSF = {"LSB_JOBID": "8", "LSB_HOSTS": "n1"}
FLUX = {"FLUX_JOB_ID": "9", "FLUX_URI": "local:///nowhere"}


def nodefile(folder: Path, *lines: str) -> dict[str, str]:
    path = folder / f"nodes-{len(lines)}"
    path.write_text("".join(f"{line}\n" for line in lines))
    return PBS | {"PBS_NODEFILE": str(path)}


def test_allocations_of_every_kind(tmp_path: Path) -> None:
    assert current_allocation({}) is None
    assert current_allocation({"SLURM_CONF": "/etc/slurm.conf", "PBS_SERVER": "head"}) is None
    assert current_allocation(SLURM) == Allocation(scheduler="Slurm", nodes=("n1",), cores=2)
    assert current_allocation(SEVERAL) == Allocation(scheduler="Slurm", nodes=("nid0001", "nid0007"), cores=2)
    one = current_allocation(nodefile(tmp_path, "n1"))
    assert one == Allocation(scheduler="PBS", nodes=("n1",), cores=2)
    two = current_allocation(nodefile(tmp_path, "n1", "n1", "n2"))
    assert two == Allocation(scheduler="PBS", nodes=("n1", "n2"), cores=2)
    lost = current_allocation(PBS | {"PBS_NODEFILE": str(tmp_path / "gone")})
    assert lost is not None and len(lost.nodes) == 1


@pytest.mark.parametrize("job", [SLURM, SEVERAL, STEP, PBS | {"PBS_NODEFILE": "/nodes"}, LSF, FLUX])
def test_what_starts_ranks_here_sees_no_job(job: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in job.items():
        monkeypatch.setenv(name, text)
    environment = open_scheduler("local", oversubscribe=True).environment(Layout(nodes=2))
    hidden = {name for name, text in environment.items() if text is None}
    assert job.keys() - hidden <= {"NCPUS"}


def test_ranks_here_have_the_share_of_the_job() -> None:
    alone = Allocation(scheduler="Slurm", nodes=("n1",), cores=1)
    assert (cores_here(None), cores_here(alone)) == (usable_cores(), 1)


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (1, Layout(nodes=1)),
        (2, Layout(nodes=2)),
        (3, Layout(nodes=3)),
        (4, Layout(nodes=2, ranks_per_node=2)),
        (5, Layout(nodes=3, ranks_per_node=2, last_node=1)),
        (None, Layout(nodes=3, ranks_per_node=2)),
    ],
)
def test_ranks_are_spread_over_the_nodes_of_a_job(ranks: int | None, layout: Layout) -> None:
    job = Allocation(scheduler="Slurm", nodes=("n1", "n2", "n3"), cores=2)
    assert spread_ranks(job, ranks, 1) == layout


def test_ranks_that_do_not_fit_on_the_nodes_of_a_job_are_refused() -> None:
    job = Allocation(scheduler="Slurm", nodes=("n1", "n2"), cores=2)
    with refuses("--ranks=5", "at most 4"):
        spread_ranks(job, 5, 1)
    with refuses("--ranks=3", "at most 2"):
        spread_ranks(job, 3, 2)
    with refuses("--ranks is needed"):
        spread_ranks(Allocation(scheduler="PBS", nodes=("n1", "n2"), cores=None), None, 1)


@pytest.fixture
def in_salloc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be in a job of two nodes, with an srun."""
    for name, text in SEVERAL.items():
        monkeypatch.setenv(name, text)
    for name in ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("in_salloc")
def test_a_sweep_in_a_job_of_several_nodes_takes_them_and_submits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, why = choose_scheduler("auto", Site())
    assert name == "inside"
    says(why, SEVERAL["SLURM_JOB_ID"], SEVERAL["SLURM_JOB_NODELIST"])
    monkeypatch.setenv("PMIX_RANK", "0")  # a rank's own harness is no user in a terminal
    assert scheduler_class("inside").detect() is None
    assert "sbatch" not in open_scheduler("inside").commands.calls


@pytest.mark.usefixtures("in_salloc")
def test_the_script_of_a_job_runs_here_and_is_found_by_another_command(tmp_path: Path) -> None:
    scheduler = open_scheduler("inside")
    first = make_job(tmp_path, 'echo "as $HARNESS_JOB"; exit 3\n')
    (job,) = scheduler.submit(first)
    wait_for(lambda: scheduler.poll([job])[job].phase == "ended", "the script's end")
    assert scheduler.poll([job])[job].exit_code == 3
    assert scheduler.output(tmp_path / "logs", job).read_text() == f"as {first.name}\n"

    second = make_job(tmp_path, "sleep 600\n", repeat=1)
    (job,) = scheduler.submit(second)
    other = open_scheduler("inside")
    wait_for(lambda: dict(other.find([second.name, "adult-3"])) == {second.name: job}, "the script")
    assert other.poll([job])[job].phase == "running"
    other.cancel([job])
    wait_for(lambda: scheduler.poll([job])[job].phase == "ended", "the script's end")
    assert other.poll([job])[job].phase == "unknown"


SCRIPT = """
from harness.comm.world import start_mpi
print(f"RANKS {start_mpi().size}", flush=True)
"""


@pytest.mark.mpi  # mpirun itself must not see the job
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("nodes", [("n1",), ("n1", "n2")], ids=["a node", "two nodes"])
def test_two_ranks_start_in_a_job_of_one_task(nodes: tuple[str, ...], tmp_path: Path) -> None:
    """With the variables of all schedulers at once, inside a step: each of them would mislead mpirun."""
    of_slurm = STEP if len(nodes) == 1 else STEP | SEVERAL
    job = LSF | FLUX | nodefile(tmp_path, *nodes) | of_slurm
    (tmp_path / "fit.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "harness", "run", "-n", "2", str(tmp_path / "fit.py")]
    environment = os.environ | job | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    # It trains nothing, which is told when both ranks have run it.
    assert result.stdout.count("RANKS 2") == 1, result.stdout + result.stderr
