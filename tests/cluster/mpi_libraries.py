"""A table of MPI libraries: does each of them sum, run an unmodified script and train in turns, by each launcher?

``python -m tests.cluster.mpi_libraries --hosts 3 --launcher "srun --mpi=pmi2"`` tries the MPI library of the Python
that runs it, with ``--mpi system`` the one that is first on PATH. The hosts are emulated on this machine, with a Slurm
on them; with ``--hosts 1`` it is this machine, two ranks and no Slurm. It prints one row; what each trial printed stays
in ``--folder``. No time is measured.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from harness.comm.mpi_library import find_mpi, mpi_title
from harness.schema.record import read_run
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.allocation import spread_ranks, start_on_nodes
from harness.sweep.job_nodes import current_allocation
from harness.sweep.launch_command import first_error
from tests.cluster.slurm import Cluster, missing, running
from tests.hosts.lab import hosts
from tests.mpi.launch import PROGRAMS, ROOT, rank_command, rank_environment

_LIMIT_S = 300
_MOST_ERROR = 1e-5  # of sums of a few normal numbers in float32
_SCRIPT = ROOT / "tests" / "scripts" / "fit_arrays.py"
_SUMS = PROGRAMS / "library_sums.py"
_SWEEP = (
    *("sweep", "--dataset", "adult", "--data-kind", "synthetic", "--samples", "6400", "--epochs", "10"),
    *("--ranks-per-node", "1", "--threads", "1", "--reports", "reports"),
)
_SITE = """\
note = "Hosts that share this machine's cores"
hosts = ["n1"]
binding = "none"
network = "eth0"

[request]
launcher = "{launcher}"

[environment]
OMPI_MCA_pml = "ob1"
OMPI_MCA_btl = "^openib,uct,ofi"
OMPI_MCA_mpi_yield_when_idle = "1"
FI_PROVIDER = "tcp"
"""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Where ranks are tried: `prefix` stands before a command that has `ranks` cores on as many `hosts`."""

    folder: Path
    prefix: Sequence[str]
    environment: dict[str, str]
    hosts: int
    ranks: int

    def run(self, name: str, *words: object) -> str:
        """Run a command and return what it printed, which is kept in the file `name`; raise a CalledProcessError."""
        log = self.folder / f"{name}.log"
        with log.open("w") as output:
            ended = subprocess.run(
                ["timeout", str(_LIMIT_S), *self.prefix, *map(str, words)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        said = log.read_text(errors="replace")
        # 3: the nodes share this machine's cores, so that times may be of no use.
        if ended.returncode not in (0, 3):
            raise subprocess.CalledProcessError(ended.returncode, words[:4], said)
        return said

    def sums(self) -> str:
        """Compare the sums of every reduction with sums in float64, and the weights of all ranks."""
        said = self.run("sums", sys.executable, "-m", "tests.cluster.mpi_libraries", "--sums", self.ranks, self.hosts)
        (line,) = (line for line in said.splitlines() if line.startswith("RESULT "))
        found = json.loads(line.removeprefix("RESULT "))
        errors = found["errors"]
        good = found["ranks"] == self.ranks and all(error < _MOST_ERROR for error in errors.values())
        return "right" if good and len(errors) > 1 else f"wrong: {found}"

    def script(self) -> str:
        """Compare the losses of an unmodified script on all ranks with those of the script alone."""
        alone = subprocess.run([sys.executable, _SCRIPT], capture_output=True, text=True, check=True).stdout
        here = () if self.hosts > 1 else ("--here",)
        run = ("run", *here, "-n", self.ranks, "--batch", "global", "--unjudged", "--record", "record", _SCRIPT)
        said = self.run("script", sys.executable, "-m", "harness", *run)
        record = read_run(self.folder / "record")
        if len({rank.host for rank in record.ranks}) != self.hosts or len(record.ranks) != self.ranks:
            return f"wrong: ranks on {[rank.host for rank in record.ranks]}"
        same = np.allclose(_losses(said), _losses(alone), rtol=1e-4)
        return "right" if same and record.weights.identical else "wrong: other losses than alone"

    def turns(self) -> str:
        """Have one rank and all train in turns, and look at the records, the turns and the page."""
        scheduler = "inside" if self.hosts > 1 else "local"
        counts = ("--scheduler", scheduler, "--nodes", f"1,{self.ranks}", "--repeats", "1")
        said = self.run("turns", sys.executable, "-m", "harness", *_SWEEP, *counts)
        (folder,) = sweep_folders(self.folder / "results")
        records = [read_run(path.parent) for path in folder.glob("*/run.json")]
        if sorted(len(record.ranks) for record in records) != [1, self.ranks]:
            return f"wrong: {first_error(said)}"
        (file,) = SweepFolder(folder).rounds.iterdir()
        whole = (pd.read_parquet(file).groupby("round")["launch"].nunique() == 2).sum()
        pages = list((self.folder / "reports").glob("*/index.html"))
        identical = all(record.weights.identical for record in records)
        return "right" if identical and whole > 5 and pages else f"wrong: {whole} rounds, {len(pages)} pages"


def _losses(said: str) -> list[float]:
    (line,) = (line for line in said.splitlines() if line.startswith("LOSSES "))
    return list(map(float, json.loads(line.removeprefix("LOSSES "))))


def sum_here(ranks: int, count: int) -> int:
    """Start the ranks that sum, on `count` nodes of the job around or on this machine; return their exit code."""
    if count == 1:
        return subprocess.call([*rank_command(ranks), str(_SUMS)], env=rank_environment())
    around = current_allocation()
    assert around is not None
    launcher, variables = start_on_nodes(around, spread_ranks(around, ranks, 1))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    for name, value in variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return subprocess.call([*launcher, sys.executable, str(_SUMS)], env=environment)


@contextmanager
def allocation(folder: Path, count: int) -> Iterator[tuple[Cluster, Sequence[str]]]:
    """Yield a Slurm on emulated hosts, and the words before a command that run it in a job of all of them."""
    with ExitStack() as stack:
        (folder / "lab").mkdir()
        lab = stack.enter_context(hosts(count, folder / "lab"))
        cluster = stack.enter_context(running(folder, nodes=count, lab=lab))
        yield cluster, ["salloc", "--quiet", f"--nodes={count}", "--exclusive", "--immediate=60"]


def print_row(trial: Trial, launcher: str) -> None:
    """Make all trials and print the row of the table."""
    cells: list[str] = []
    remarks: list[str] = []
    tests: Sequence[Callable[[], str]] = (trial.sums, trial.script, trial.turns)
    for test in tests:
        try:
            cells.append(test())
        except subprocess.CalledProcessError as error:
            cells.append(f"ends with {error.returncode}")
            remarks.append(f"{test.__name__}: {first_error(error.output) or error.output[-300:]}")
    print("|", mpi_title(), "|", find_mpi().family, "|", launcher, "|", trial.hosts, "|", " | ".join(cells), "|")
    for remark in remarks:
        print("   ", remark)


def end_in_order(number: int, _: object) -> None:
    """End this program such that Slurm and the hosts are ended, which a second signal must not interrupt."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    """Start what is needed and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--launcher", default="auto")
    parser.add_argument("--mpi", default="wheel")
    parser.add_argument("--folder", type=Path, default=Path("mpi-library"))
    parser.add_argument("--sums", type=int, nargs=2)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_in_order)
    if options.sums:
        sys.exit(sum_here(*options.sums))
    if why := missing():
        sys.exit(why)
    os.environ["HARNESS_MPI"] = options.mpi
    os.environ["PYTHONPATH"] = str(ROOT)
    folder = options.folder.resolve()
    locks = folder / "locks"
    locks.mkdir(parents=True)
    os.environ |= {"HARNESS_LOCK_DIR": str(locks), "HARNESS_QUIET_S": "0"}  # no measurement is waited for
    subprocess.run([sys.executable, "-m", "harness.comm.native.build"], check=True)  # it may take minutes
    environment = dict(os.environ)
    if options.hosts == 1:
        print_row(Trial(folder=folder, prefix=(), environment=environment, hosts=1, ranks=2), options.launcher)
        return
    sites = folder / "config" / "mpi-tf-harness" / "sites"
    sites.mkdir(parents=True)
    (sites / "lab.toml").write_text(_SITE.format(launcher=options.launcher))
    cluster_folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster_folder.chmod(0o755)
    try:
        with allocation(cluster_folder, options.hosts) as (cluster, words):
            environment |= {"SLURM_CONF": str(cluster.config), "XDG_CONFIG_HOME": str(folder / "config")}
            prefix = cluster.on("n1", words, folder)
            trial = Trial(
                folder=folder, prefix=prefix, environment=environment, hosts=options.hosts, ranks=options.hosts
            )
            print_row(trial, options.launcher)
    finally:
        shutil.rmtree(cluster_folder)


if __name__ == "__main__":
    main()
