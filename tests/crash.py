"""Kill sweeps (kill -9) at random moments and in the window around a submission, and say what was lost.

``python -m tests.crash [KILLS] [--scheduler local|pbs] [--seed N]`` runs a sweep whose launches train nothing, kills
its command KILLS times, then lets the same command end. It fails unless every record is whole and there once, no
launch was in the queue twice, no process is left over and nothing was laid aside. With ``pbs`` the tests' double of a
PBS server without job history has the jobs, which go on when the command dies.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from harness.sweep import store
from harness.sweep.schedulers import scheduler_class
from harness.sweep.status import read_status
from tests.factories import make_run, write_run

HERE = Path(__file__).parent
WINDOWS = ("random", "before", "after")  # a moment, or just before or after a submission
LAUNCHES = 8


def build(folder: Path) -> dict[str, str]:
    """Make a launcher that takes half a second, a data file and a PBS server; return the environment to use them."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("mpirun", "qsub", "qstat", "qdel", "qselect", "pbsnodes"):
        shutil.copy(HERE / ("fake_mpirun.py" if name == "mpirun" else "fake_pbs.py"), tools / name)
        (tools / name).chmod(0o755)
    whole = write_run(folder / "whole", make_run())
    for name in ("run.json", "steps.parquet"):
        shutil.copy(whole / name, tools)
    (tools / "behaviour.json").write_text('{"1": "slow"}')
    np.savez(folder / "own.npz", x=np.ones((20, 3), np.float32), y=np.arange(20) % 2)
    for name in ("pbs", "locks"):
        (folder / name).mkdir()
    return os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HARNESS_MPI": "system",
        "HARNESS_CACHE_DIR": str(folder / "cache"),
        "HARNESS_LOCK_DIR": str(folder / "locks"),
        "FAKE_PBS": str(folder / "pbs"),
    }


def command(folder: Path, scheduler: str) -> list[str]:
    """Return the words of the sweep's command."""
    words = ["sweep", "--data", str(folder / "own.npz"), "--nodes", "1", "--repeats", str(LAUNCHES)]
    return [
        *words,
        "--scheduler",
        scheduler,
        "--results",
        str(folder / "results"),
        "--reports",
        str(folder / "reports"),
    ]


def child(window: str, seed: int, words: list[str]) -> None:
    """Be the command, which dies in a window around one of its submissions."""
    from harness.__main__ import main

    kind = scheduler_class(words[words.index("--scheduler") + 1])
    submit, left = kind.submit, random.Random(seed).randrange(3)

    def dying(self, job):
        nonlocal left
        left -= 1
        if window == "before" and left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        found = submit(self, job)
        if window == "after" and left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    kind.submit = dying
    kind.poll_s = 0.1
    sys.argv = ["harness", *words]
    main()


def kill_once(folder: Path, scheduler: str, environment: dict[str, str], chance: random.Random) -> str:
    """Run the command, kill it, and return how it ended."""
    window = chance.choice(WINDOWS)
    words = [sys.executable, "-m", "tests.crash", "--child", window, "--seed", str(chance.randrange(10**6)), "--"]
    with (folder / "said.txt").open("a") as said:
        process = subprocess.Popen([*words, *command(folder, scheduler)], env=environment, stdout=said, stderr=said)
        try:
            process.wait(timeout=chance.uniform(1.0, 6.0) if window == "random" else 120)
        except subprocess.TimeoutExpired:
            process.kill()
    code = process.wait()
    return f"{window}: {'killed' if code == -signal.SIGKILL else f'ended with {code}'}"


def left_over(folder: Path) -> list[str]:
    """Return the processes that work in `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(" ".join(words)[:200])
    return found


def faults(folder: Path, scheduler: str) -> list[str]:
    """Return what is not as it should be after the sweep has ended."""
    (sweep,) = (folder / "results").glob("*/sweep.json")
    status = read_status(sweep.parent)
    found = [f"{entry.state}: {entry.detail}" for entry in status.entries if entry.state != "done"]
    if len(status.entries) != LAUNCHES:
        found.append(f"{len(status.entries)} launches instead of {LAUNCHES}")
    found += [f"left: {words}" for words in left_over(folder)]
    found += [f"laid aside: {path}" for path in sweep.parent.glob("replaced/*")]
    found += [f"still noted: {running.name}" for running in store.read_running(sweep.parent)]
    if scheduler == "pbs" and (jobs := len(list((folder / "pbs").glob("*.number")))) != LAUNCHES:
        found.append(f"{jobs} jobs for {LAUNCHES} launches")
    return found


def study(scheduler: str, kills: int, chance: random.Random) -> list[str]:
    """Kill a sweep up to `kills` times, let it end, and return its faults."""
    with tempfile.TemporaryDirectory(prefix="harness-crash-") as name:
        folder = Path(name)
        environment = build(folder)
        for number in range(kills):
            how = kill_once(folder, scheduler, environment, chance)
            print(f"{scheduler} kill {number + 1}: {how}", flush=True)
            if "ended" in how:
                break
        words = [sys.executable, "-m", "harness", *command(folder, scheduler)]
        last = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=600)
        deadline = time.monotonic() + 10
        while left_over(folder) and time.monotonic() < deadline:
            time.sleep(0.2)
        found = faults(folder, scheduler)
        if last.returncode:
            found.append(f"the last command ended with {last.returncode}: {last.stderr[-500:]}")
        if "Traceback" in (folder / "said.txt").read_text():
            found.append((folder / "said.txt").read_text()[-2000:])
        return found


def main() -> int:
    """Kill as often as asked, in studies of at most six kills each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--scheduler", default="local", choices=("local", "pbs"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", choices=WINDOWS, help=argparse.SUPPRESS)
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, words = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    if own.child:
        child(own.child, own.seed, words)
        return 0
    chance, found, left = random.Random(own.seed), [], own.kills
    while left > 0:
        found += study(own.scheduler, min(left, 6), chance)
        left -= 6
    print(f"{own.kills} kills of {own.scheduler} sweeps: {len(found)} faults")
    print("\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
