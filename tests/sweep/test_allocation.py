"""`harness run` inside a job that a user has opened: slots are this host's cores, other nodes are told of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.cores import usable_cores
from harness.schema.layout import Layout
from harness.sweep.allocation import cores_here, spread_ranks
from harness.sweep.job_nodes import Allocation, current_allocation
from harness.sweep.schedulers import open_scheduler
from tests.labs.job_variables import FLUX, LSF, PBS, SEVERAL, SLURM, STEP, nodefile
from tests.labs.sentences import refuses
from tests.mpi.launch import ROOT


def test_allocations_of_every_kind(tmp_path: Path) -> None:
    assert current_allocation({}) is None
    assert current_allocation({"SLURM_CONF": "/etc/slurm.conf", "PBS_SERVER": "head"}) is None
    assert current_allocation(SLURM) == Allocation(scheduler="Slurm", job="4711", nodes=("n1",), cores=2)
    assert current_allocation(SEVERAL) == Allocation(
        scheduler="Slurm", job="4711", nodes=("nid0001", "nid0007"), cores=2
    )
    one = current_allocation(nodefile(tmp_path, "n1"))
    assert one == Allocation(scheduler="PBS", job="7.head", nodes=("n1",), cores=2)
    two = current_allocation(nodefile(tmp_path, "n1", "n1", "n2"))
    assert two == Allocation(scheduler="PBS", job="7.head", nodes=("n1", "n2"), cores=2)
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
    alone = Allocation(scheduler="Slurm", job="4711", nodes=("n1",), cores=1)
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
    job = Allocation(scheduler="Slurm", job="4711", nodes=("n1", "n2", "n3"), cores=2)
    assert spread_ranks(job, ranks, 1) == layout


def test_ranks_that_do_not_fit_on_the_nodes_of_a_job_are_refused() -> None:
    job = Allocation(scheduler="Slurm", job="4711", nodes=("n1", "n2"), cores=2)
    with refuses("--ranks 5", "at most 4"):
        spread_ranks(job, 5, 1)
    with refuses("--ranks 3", "at most 2"):
        spread_ranks(job, 3, 2)
    with refuses("--ranks is needed"):
        spread_ranks(Allocation(scheduler="PBS", job="7.head", nodes=("n1", "n2"), cores=None), None, 1)


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
