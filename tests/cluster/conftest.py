"""A Slurm for all tests of this folder, and a user's terminal at it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.schema.sweep_folder import sweep_folders
from tests.cluster.slurm import Cluster, missing, running
from tests.labs.sweep_lab import Lab
from tests.mpi.launch import warm_python

_LIMIT_S = 600
# The command, which waits 3 s instead of 30 for what jobs wrote, and for submissions that were cut off: there is no NFS
# between these nodes, and their controller has little to do.
_HARNESS = (
    "from harness.__main__ import main; from harness.sweep import job_loop, job_submission; "
    "job_loop.GRACE_S = job_submission.ARRIVAL_S = 3.0; main()"
)


@pytest.fixture(scope="package")
def slurm() -> Iterator[Cluster]:
    """Start a Slurm of 4 nodes with 4 cores and 2 stand-in GPUs each, or skip where it is not installed."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    # Sockets need a short path, and munge's users must be able to enter it.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    try:
        with running(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def cluster(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Give a test the cluster without jobs and with all nodes idle, and leave it so."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    yield slurm
    slurm.heal()


@dataclass
class Terminal:
    """Where a user types commands. `site` is a site file for nodes that share the machine's cores.

    `python` runs them, and their jobs and ranks; without one it is `warm_python`, but on hosts of their own.
    """

    cluster: Cluster
    folder: Path
    site: Path
    environment: dict[str, str]
    python: str = ""

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def sweep_folder(self) -> Path:
        (found,) = sweep_folders(self.results)
        return found

    def harness(self, *words: str, code: int = 0) -> str:
        """Run the command, check its exit code and return what the user saw.

        The cluster's nodes share this machine's cores, so that times may be of no use: 3 is as good as 0.
        """
        process = self.begin(*words)
        try:
            said, _ = process.communicate(timeout=_LIMIT_S)
        finally:
            process.kill()
        assert process.returncode in ((0, 3) if code == 0 else (code,)), said
        return said

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start the command and return it."""
        command, *others = words
        if command == "sweep":
            others += ["--scheduler", "slurm", "--site", str(self.site), "--reports", "reports"]
        # On hosts of their own a process has to be started there.
        python = self.python or (sys.executable if self.cluster.lab else warm_python())
        results = () if command == "site" else ("--results", "results")
        line = [python, "-c", _HARNESS, command, *results, *others]
        return subprocess.Popen(
            self.cluster.on("n1", line, self.folder),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def terminal(tmp_path: Path, cluster: Cluster) -> Terminal:
    """Open a terminal on the cluster in an empty folder."""
    return open_terminal(cluster, tmp_path, 'note = "Several slurmd on one machine"\nbinding = "none"\n')


def open_terminal(cluster: Cluster, tmp_path: Path, site_facts: str) -> Terminal:
    """Return a terminal on `cluster` in an empty folder, with the text of its site file."""
    folder = tmp_path / "a user's home"
    folder.mkdir()
    site = folder / "test.toml"
    site.write_text(site_facts)
    root = str(Path(__file__).parents[2])
    environment = cluster.environment | {"PYTHONPATH": root, "COLUMNS": "200"}
    return Terminal(cluster=cluster, folder=folder, site=site, environment=environment)


@dataclass
class Untrained:
    """A terminal whose launches train nothing: `behave` says what they do, by their number of ranks."""

    terminal: Terminal
    lab: Lab

    def words(self, *words: str) -> tuple[str, ...]:
        """Return the sweep command for tiny data and the launcher that obeys, with a job for each launch."""
        return ("sweep", "--data", str(self.lab.workload.data_file), "--launcher", "mpirun", "--mode", "jobs", *words)


@pytest.fixture
def untrained(lab: Lab, terminal: Terminal) -> Untrained:
    """Return a terminal whose launches train nothing."""
    for name in ("PATH", "HARNESS_MPI", "HARNESS_CACHE_DIR"):
        terminal.environment[name] = os.environ[name]
    return Untrained(terminal=terminal, lab=lab)
