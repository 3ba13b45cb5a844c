"""The cluster of these tests: nothing of it is left where its controller dies, or the process that started it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.leftovers import find_left
from tests.cluster.slurm import missing, running, wait_for
from tests.mpi.launch import ROOT

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why := missing()), reason=f"Slurm: {why}"),
]
_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.cluster.slurm import running, wait_for
with running(Path(sys.argv[1]), nodes=1) as cluster:
    cluster.ask("sbatch", "--output=/dev/null", "--wrap=exec sleep 600")
    wait_for(lambda: cluster.states()["n1"] != "idle", "the job")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder with a short path that munge's users may enter."""
    path = Path(tempfile.mkdtemp(prefix="slurm-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def left_of(folder: Path) -> list[str]:
    """Return the names of the processes of the cluster in `folder`."""
    return [process.name() for process in find_left(folder)]


def test_a_cluster_without_a_controller_is_ended_with_its_jobs(folder: Path) -> None:
    with running(folder, nodes=1) as cluster:
        cluster.ask("sbatch", "--output=/dev/null", "--wrap=exec sleep 600")
        wait_for(lambda: {"sleep", "slurmstepd"} <= set(left_of(folder)), "the job")
        cluster.daemons["slurmctld"].kill()
        cluster.daemons["slurmctld"].wait()
    assert left_of(folder) == []


def test_a_cluster_whose_commands_fail_is_ended_all_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scancel").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "scancel").chmod(0o755)
    with pytest.raises(AssertionError, match="scancel"), running(folder, nodes=1):
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert left_of(folder) == []


def test_a_cluster_ends_with_the_process_that_has_started_it(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(folder)], cwd=ROOT, check=False)
    assert ended.returncode == -9
    wait_for(lambda: left_of(folder) == [], "the end of the cluster")
