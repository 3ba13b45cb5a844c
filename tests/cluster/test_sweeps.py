"""Whole sweeps of real training through a real Slurm: jobs, one shared allocation, and a wrong rank start."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.schema.record import read_accounts
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_files import read_study
from tests.cluster.conftest import Terminal
from tests.cluster.slurm import Cluster
from tests.labs.reframe import SMALL, performance, reframe
from tests.labs.slurm_sweeps import TINY, nodes_of, records

# Alone: on busy cores a rank of Open MPI 5.0 was seen to crash in MPI_Init, by a message that came before it was ready.
pytestmark = [pytest.mark.cluster, pytest.mark.mpi, pytest.mark.alone, pytest.mark.timeout(900)]


def test_a_sweep_over_nodes_from_submit_to_report_and_only_what_is_missing_again(
    terminal: Terminal, cluster: Cluster
) -> None:
    command = (*TINY, "--nodes", "1,2", "--repeats", "1", "--mode", "jobs")
    before = len(cluster.jobs())
    said = terminal.harness(*command)
    assert "scheduler: slurm, as asked" in said
    assert "4 Slurm nodes are 1 machine by name: jobs run one by one" in said
    page = terminal.folder / said.splitlines()[-1]
    assert page.name == "index.html"
    assert page.is_file()
    assert len(cluster.jobs()) - before == 2
    found = records(terminal)
    assert nodes_of(found[1]) == ["n1"]
    assert nodes_of(found[2]) == ["n1", "n2"]
    assert found[2].provenance.launcher.startswith("srun --mpi=pmix --nodes=2 --ntasks=2")
    assert " 1 rank, launch 1" in terminal.harness("status", terminal.sweep_folder.name)

    # Nodes that are one machine may keep each other busy: a launch without valid times is made again too.
    busy = sum(bool(record.invalid) for record in found.values())
    said = terminal.harness(*command)
    assert f"2 launches, {2 - busy} done, {busy} to run" in said
    assert len(cluster.jobs()) - before == 2 + busy

    (one,) = [
        point for point in read_study(SweepFolder(terminal.sweep_folder)).sweep.points() if point.layout.nodes == 1
    ]
    shutil.rmtree(terminal.sweep_folder / one.folder)
    again = 1 + sum(bool(record.invalid) for record in records(terminal).values())
    assert f"2 launches, {2 - again} done, {again} to run" in terminal.harness(*command)
    assert len(cluster.jobs()) - before == 2 + busy + again


def test_one_allocation_runs_all_points_smaller_ones_on_its_first_nodes(terminal: Terminal, cluster: Cluster) -> None:
    before = len(cluster.jobs())
    said = terminal.harness(*TINY, "--nodes", "1..3", "--repeats", "2", "--launcher", "mpirun")
    assert "2 blocks in " in said
    assert len(cluster.jobs()) - before == 1
    found = records(terminal)
    assert {count: nodes_of(record) for count, record in found.items()} == {
        1: ["n1"],
        2: ["n1", "n2"],
        3: ["n1", "n2", "n3"],
    }
    assert "mpirun" in found[3].provenance.launcher
    blocks = {file.stem for file in SweepFolder(terminal.sweep_folder).rounds.iterdir()}
    assert len(blocks) == 2
    assert {record.block for record in found.values()} <= blocks
    accounts = read_accounts(SweepFolder(terminal.sweep_folder))
    assert (len(accounts), len({one.job for one in accounts})) == (6, 1)
    assert {one.missing for one in accounts} == {"sacct: Slurm accounting storage is disabled"}


def test_a_sweep_inside_salloc_takes_the_nodes_of_that_job(terminal: Terminal, cluster: Cluster) -> None:
    before = len(cluster.jobs())
    words = (*TINY, "--nodes", "1,2", "--repeats", "1", "--launcher", "mpirun", "--site", str(terminal.site))
    line = ["salloc", "--nodes=2", "--exclusive", sys.executable, "-m", "harness", *words]
    ended = subprocess.run(
        line, cwd=terminal.folder, env=terminal.environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode in (0, 3), ended.stdout + ended.stderr  # nodes that are one machine may have no valid times
    assert "scheduler: inside, found job" in ended.stdout
    assert len(cluster.jobs()) - before == 1  # salloc's own
    found = records(terminal)
    assert {count: nodes_of(record) for count, record in found.items()} == {1: ["n1"], 2: ["n1", "n2"]}
    assert {bool(record.block) for record in found.values()} == {True}


REFRAME = """site_configuration = {
    "systems": [{"name": "tests", "hostnames": [".*"], "partitions": [
        {"name": "batch", "scheduler": "squeue", "launcher": "srun", "environs": ["builtin"]}]}],
    "environments": [{"name": "builtin"}],
}
"""


@pytest.mark.usefixtures("warm")
def test_reframe_measures_through_slurm(terminal: Terminal, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(REFRAME)
    shutil.copy(terminal.site, tmp_path / "site.toml")
    before = len(cluster.jobs())
    asked = f"options={SMALL},--repeats=2,--site={tmp_path}/site.toml"  # one may see other load
    said = reframe(tmp_path, "-C", f"{tmp_path}/config.py", "-S", asked, environment=terminal.environment)
    assert "@tests:batch+builtin" in said
    assert len(cluster.jobs()) - before == 1
    assert performance(said).keys() == {"speedup", "efficiency", "rows"}, said


def test_a_wrong_rank_start_is_explained_before_training(terminal: Terminal) -> None:
    terminal.harness(*TINY, "--nodes", "2", "--repeats", "1", "--launcher", "srun --mpi=pmi2", code=1)
    said = terminal.harness("status")
    assert "srun started 2 processes, but each of them is alone in its MPI world (Open MPI" in said
    assert "use srun --mpi=pmix, or mpirun inside the job" in said
