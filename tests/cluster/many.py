"""A sweep of 1,000 jobs of no length: what a large sweep costs the scheduler and this machine.

``python -m tests.cluster.many --repeats 1000`` starts a Slurm of four nodes, submits jobs that end at once, and
prints how long that took, how often the scheduler was asked, the command's peak memory, and how long `harness status`
takes afterwards.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.slurm import missing, running

_TEMPLATE = '{% extends "slurm.sh.j2" %}\n{% block launch %}exit 0{% endblock %}\n'
_SWEEP = (
    *("sweep", "--dataset", "adult", "--data-kind", "synthetic", "--samples", "640", "--epochs", "1", "--mode", "jobs"),
    *("--nodes", "1", "--share-nodes", "--scheduler", "slurm", "--launcher", "mpirun", "--template", "nothing.sh.j2"),
    *("--max-node-hours", "100000"),
)


def measure(folder: Path, repeats: int) -> None:
    """Run the sweep in `folder` and say what it took. The jobs leave no records, so every launch counts as failed."""
    (folder / "nothing.sh.j2").write_text(_TEMPLATE)
    command = (sys.executable, "-m", "harness")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    begin = time.monotonic()
    sweep = subprocess.run(
        (*command, *_SWEEP, "--repeats", str(repeats)),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    calls = re.search(r"scheduler commands: (.*)", sweep.stdout)
    assert calls, sweep.stdout[-2000:] + sweep.stderr[-2000:]
    print(f"{repeats} jobs: {seconds:.1f} s from planning to the last end, {peak / 1e6:.0f} MB")
    print(f"calls: {calls[1]}")
    begin = time.monotonic()
    status = subprocess.run(
        (*command, "status"), cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    lines = status.stdout.splitlines()
    print(f"harness status: {time.monotonic() - begin:.2f} s, {len(lines)} lines, the last: {lines[-1]}")


def main() -> None:
    """Start the cluster and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1000)
    options = parser.parse_args()
    if why := missing():
        sys.exit(why)
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running(folder, own_hosts=True) as cluster:
            os.environ["SLURM_CONF"] = str(cluster.config)
            user = folder / "user"
            user.mkdir()
            measure(user, options.repeats)


if __name__ == "__main__":
    main()
