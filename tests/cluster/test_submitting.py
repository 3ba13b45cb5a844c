"""A real sbatch that fails at any moment: every job is in the queue once, whoever was killed when."""

import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.sweep.status import read_status
from tests.cluster.conftest import Untrained
from tests.cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
_COMMANDS = 60  # at most, until all launches are done
# What becomes of a submission: `fails` after it was accepted, `refuses` before; its client is `cut` off at some moment
# after its start; the command that submits is killed `before` or `after`; it is `slow` to answer; or all is well.
WRAPPER = """#!{python} -S
import os, random, signal, subprocess, sys, time
counter = os.path.join({folder!r}, "count")
count = int(open(counter).read()) if os.path.exists(counter) else 0
open(counter, "w").write(str(count + 1))
chance = random.Random({seed} * 1000 + count)
ways = ["fails", "fails", "fails", "cut", "cut", "after", "before", "slow", "refuses", "well"]
way = chance.choice(ways) if count else "fails"
print(way, file=open(os.path.join({folder!r}, "ways"), "a"))
real = [{sbatch!r}, *sys.argv[1:]]
if way == "refuses":
    sys.exit("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)")
if way == "before":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(chance.uniform(0, 2))
child = subprocess.Popen(real, stdout=subprocess.PIPE, text=True)
if way == "cut":
    time.sleep(chance.uniform(0, 0.05))
    child.kill()
answer = child.communicate()[0]
if way == "after":
    os.kill(os.getppid(), signal.SIGKILL)
if way == "slow":
    time.sleep(chance.uniform(0, 2))
if way in ("fails", "cut"):
    sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
print(answer, end="")
sys.exit(child.returncode)
"""


def submit_all(untrained: Untrained, cluster: Cluster, folder: Path, launches: int, seed: int) -> Counter[str]:
    """Give the sweep command until all launches are done; return how often each job's name was queued."""
    sbatch = shutil.which("sbatch")
    assert sbatch is not None
    commands = folder / "bin"
    commands.mkdir()
    wrapper = commands / "sbatch"
    wrapper.write_text(WRAPPER.format(python=sys.executable, folder=str(folder), seed=seed, sbatch=sbatch))
    wrapper.chmod(0o755)
    environment = untrained.terminal.environment
    environment["PATH"] = f"{commands}:{environment['PATH']}"
    before = set(cluster.jobs())
    words = untrained.words("--nodes", "1", "--repeats", str(launches))
    for _ in range(_COMMANDS):
        command = untrained.terminal.begin(*words)
        try:
            printed, _ = command.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            command.kill()
            raise
        assert "Traceback" not in printed
        if command.returncode in (0, 3):  # else it was killed
            break
    assert read_status(untrained.terminal.sweep_folder).count("done", "invalid") == launches
    lines = cluster.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i %j").splitlines()
    return Counter(line.split()[1] for line in lines if line.split()[0] not in before)


def test_every_job_is_queued_once(untrained: Untrained, cluster: Cluster, tmp_path: Path) -> None:
    names = submit_all(untrained, cluster, tmp_path, 3, seed=1)
    assert (len(names), set(names.values())) == (3, {1})


@pytest.mark.campaign
def test_every_one_of_twenty_jobs_is_queued_once(untrained: Untrained, cluster: Cluster, tmp_path: Path) -> None:
    seed = random.randrange(1000)
    names = submit_all(untrained, cluster, tmp_path, 20, seed)
    print(f"seed {seed}: {Counter((tmp_path / 'ways').read_text().split())}; {len(names)} jobs, {names.total()} in all")
    assert (len(names), set(names.values())) == (20, {1}), seed
