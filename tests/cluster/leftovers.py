"""What is left of a test's Slurm, and a process that ends it if the tests are killed.

``python -m tests.cluster.leftovers FOLDER`` reads its standard input, whose other end only the tests have. Tests that
have ended the cluster themselves send a byte; where the input ends without one they are dead.
"""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from harness.base.launch_guard import find_processes

CONFIG = "SLURM_CONF"
"""The variable that Slurm's commands, daemons and jobs have; its file is in the cluster's folder."""
_GRACE_S = 4.0  # between SIGTERM and SIGKILL
_LIMIT_S = 60.0  # for processes that the kernel does not end
_PAUSE_S = 0.2


def find_left(folder: Path) -> list[psutil.Process]:
    """Return the processes of the cluster in `folder`: daemons, steps, jobs."""
    return find_processes(CONFIG, str(folder / "slurm.conf")) + _find_steps(folder)


def _find_steps(folder: Path) -> list[psutil.Process]:
    """Return the step daemons of the cluster: they write their title over their environment, but have its log open."""
    steps = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            if process.name().startswith("slurmstepd") and process.status() != psutil.STATUS_ZOMBIE:
                if any(Path(file.path).is_relative_to(folder) for file in process.open_files()):
                    steps.append(process)
    return steps


def end_left(folder: Path) -> None:
    """End all processes of the cluster in `folder`; raise an AssertionError if some are left."""
    begun = time.monotonic()
    while left := find_left(folder):
        waited = time.monotonic() - begun
        assert waited < _LIMIT_S, f"processes of the cluster in {folder} do not end: {left}"
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL if waited > _GRACE_S else signal.SIGTERM)
        time.sleep(_PAUSE_S)


def watch(folder: Path) -> "subprocess.Popen[bytes]":
    """Start the process that ends the cluster in `folder` if this one is killed."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def main() -> None:
    """Wait for the end of the tests, and end what they have left if they were killed."""
    if not sys.stdin.buffer.read(1):
        end_left(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
