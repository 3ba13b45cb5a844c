"""Kill sweeps (kill -9) at random moments and at those where something can be lost, and say what was lost.

``python -m tests.crash [KILLS] [--scheduler local|pbs|slurm] [--real] [--seed N]`` kills the command of one study again
and again until the study has ended, then that of the next one. After every kill each record must be whole, and
`harness status` must answer; at the end of a study each launch must be there once, none may have run twice or beside
another one on this machine, no process may be left over and nothing laid aside.

Launches train nothing and take half a second, or with ``--real`` train for one epoch under the wheel's mpirun. With
``pbs`` the tests' double of a PBS server without job history has the jobs, with ``slurm`` a real Slurm of four nodes
(root; see `tests.cluster`): jobs go on when the command dies.
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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq

from harness.base.errors import UserError
from harness.base.files import cache_folder
from harness.base.removal import MARK
from harness.schema.record import RunRecord
from harness.schema.sweep_folder import STEPS_FILE, SweepFolder
from harness.sweep import finished_launches, job_loop, sweep_files
from harness.sweep.schedulers import scheduler_class
from harness.sweep.status import Status, read_status
from tests.labs.doubles import install
from tests.labs.factories import make_run, write_run

HERE = Path(__file__).parent
ANY = "any"
# What the command is about to do, or has just done, when it dies.
MOMENTS = (ANY, ANY, "before the intent", "between intent and submission", "after the submission", "collecting")
MODES = {"slurm": ("jobs", "array", "turns")}
# Two launches at once have measured each other, and a launch that has a record is not to run again.
LAUNCHER = """\
#!{python}
import fcntl, os, sys
from pathlib import Path
words = sys.argv[1:]
if words != ["--version"]:
    record = Path(words[words.index("--record") + 1])
    handle = os.open({folder!r} + "/one", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(handle, True)
    wrong = []
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        wrong = ["ran beside another launch"] if {alone} else []
    if (record / "run.json").exists():
        wrong.append("ran again though it has a record")
    with open({folder!r} + "/launched.txt", "a") as log:
        log.write("; ".join([record.name, *wrong]) + chr(10))
os.execv({program!r}, [{program!r}, *words])
"""


@dataclass(kw_only=True)
class Study:
    """A sweep that is killed: its folder, how its command is given, and the moments at which it died so far."""

    folder: Path
    scheduler: str
    launches: int
    words: list[str]
    environment: dict[str, str]
    chance: random.Random
    longest_s: float
    moments: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)

    @property
    def sweep(self) -> Path | None:
        """The sweep's folder, None before it is there."""
        return next((path.parent for path in (self.folder / "results").glob("*/sweep.json")), None)

    def kill(self) -> str | None:
        """Run the command, kill it and return the moment, None where it came to its end before."""
        aim = self.chance.choice(MOMENTS)
        own = ["--child", aim, "--seed", str(self.chance.randrange(10**6)), "--scheduler", self.scheduler, "--"]
        with (self.folder / "said.txt").open("a") as said:
            words = [sys.executable, "-m", "tests.crash", *own, *self.words]
            process = subprocess.Popen(words, env=self.environment, stdout=said, stderr=said)
            try:
                process.wait(timeout=self.chance.uniform(0.5, self.longest_s) if aim == ANY else 120)
            except subprocess.TimeoutExpired:
                process.kill()
        if process.wait() != -signal.SIGKILL:
            if process.returncode:
                self.found.append(f"a command ended with {process.returncode}")
            return None
        moment = aim if aim != ANY else f"random: {self._moment()}"
        self.moments[moment] += 1
        return moment

    def _moment(self) -> str:
        """Return where the command was, by what it has left on disk."""
        left = sweep_files.read_running(SweepFolder(self.sweep)) if self.sweep else ()
        if not left:
            return "nothing submitted"
        if any(not running.job for running in left):
            return "between intent and submission"
        if any((self.sweep / running.point.folder).exists() for running in left):
            return "collecting"
        if self.scheduler == "local":
            return "running"
        return "running" if "running" in {entry.state for entry in self.status().entries} else "queued"

    def status(self) -> Status:
        """Return what `harness status` would show."""
        environment = dict(os.environ)
        os.environ.update(self.environment)
        try:
            return read_status(self.sweep)
        finally:
            os.environ.clear()
            os.environ.update(environment)

    def look(self) -> None:
        """Take note of records that are not whole, and of a status that does not answer."""
        if self.sweep is None:
            return
        for point in sweep_files.read_study(SweepFolder(self.sweep)).sweep.points():
            if (self.sweep / point.folder).exists():
                record = finished_launches.check_record(SweepFolder(self.sweep), point)
                if isinstance(record, RunRecord):
                    pq.read_table(self.sweep / point.folder / STEPS_FILE)
                else:
                    self.found.append(record)
        try:
            self.status()
        except UserError as error:
            self.found.append(f"status: {error}")

    def finish(self) -> None:
        """Let the same command end, and take note of what is not as it should be then."""
        words = [sys.executable, "-m", "harness", *self.words]
        last = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False, timeout=900)
        if last.returncode:
            self.found.append(f"the last command ended with {last.returncode}: {last.stderr[-500:]}")
        deadline = time.monotonic() + 10
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        self.found += self._processes()
        self.look()
        states = [entry.state for entry in self.status().entries]
        if len(states) != self.launches or set(states) - {"done", "invalid"}:
            self.found.append(f"{self.launches} launches are {states}")
        self.found += [f"laid aside: {path}" for path in self.sweep.glob("replaced/*")]
        locks = (SweepFolder(self.sweep).lock.name, SweepFolder(self.sweep).submitting.name, MARK)
        self.found += [f"half-written: {path.name}" for path in self.sweep.glob(".*") if path.name not in locks]
        self.found += [f"still noted: {running.name}" for running in sweep_files.read_running(SweepFolder(self.sweep))]
        self.found += [line for line in (self.folder / "launched.txt").read_text().splitlines() if ";" in line]
        if "Traceback" in (self.folder / "said.txt").read_text():
            self.found.append((self.folder / "said.txt").read_text()[-2000:])

    def _processes(self) -> list[str]:
        """Return the processes that still work in the folder."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if process.pid != os.getpid() and any(str(self.folder) in word for word in words):
                found.append(f"left: {' '.join(words)[:200]}")
        return found


def build(folder: Path, scheduler: str, chance: random.Random, *, real: bool, mode: str, repeats: int) -> Study:
    """Make a launcher, a data file, a PBS server, and the study that uses them: `repeats` launches on 1 and 2 ranks."""
    tools, double, python = folder / "bin", folder / "double", Path(sys.executable)
    for path in (tools, double, folder / "pbs", folder / "locks", folder / "cache"):
        path.mkdir()
    for name in ("qsub", "qstat", "qdel", "qselect", "pbsnodes") if scheduler == "pbs" else ():
        install("fake_pbs.py", tools / name)
    install("fake_mpirun.py", double / "mpirun")
    whole = write_run(folder / "whole", make_run())
    for name in ("run.json", "steps.parquet"):
        shutil.copy(whole / name, double)
    (double / "behaviour.json").write_text('{"1": "slow", "2": "slow"}')
    program = python.with_name("mpirun") if real else double / "mpirun"
    text = LAUNCHER.format(python=python, folder=str(folder), program=str(program), alone=scheduler == "local")
    (tools / "mpirun").write_text(text)
    for path in (*tools.iterdir(), double / "mpirun"):
        path.chmod(0o755)
    if real:  # the library that goes with the launcher, and the operation that is built for both
        (folder / "lib").symlink_to(python.parent.parent / "lib")
        (folder / "cache/native").symlink_to(cache_folder() / "native")
    np.savez(folder / "own.npz", x=np.ones((20, 3), np.float32), y=np.arange(20) % 2)
    words = ["sweep", "--data", str(folder / "own.npz"), "--nodes", "1,2", "--repeats", str(repeats), "--epochs", "1"]
    words += ["--scheduler", scheduler, "--mode", mode, *(["--launcher", "mpirun"] if scheduler == "slurm" else [])]
    words += ["--oversubscribe"] if scheduler == "local" else []  # this machine may be busy: times are not asked for
    words += ["--results", str(folder / "results"), "--reports", str(folder / "reports")]
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HARNESS_MPI": "system",
        "HARNESS_CACHE_DIR": str(folder / "cache"),
        "HARNESS_LOCK_DIR": str(folder / "locks"),
        "FAKE_PBS": str(folder / "pbs"),
    }
    return Study(
        folder=folder,
        scheduler=scheduler,
        launches=2 * repeats,
        words=words,
        environment=environment,
        chance=chance,
        longest_s=25.0 if real else 9.0,
    )


def child(aim: str, seed: int, scheduler: str, words: list[str]) -> None:
    """Be the command, which dies at the moment that is aimed at: the first, second or third time that it comes."""
    from harness.__main__ import main

    left = random.Random(seed).randrange(3)

    def die(moment: str) -> None:
        nonlocal left
        left -= moment == aim
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    kind = scheduler_class(scheduler)
    write, submit, settle = job_loop.write_job, kind.submit, job_loop.Settler.settle

    def writing(*args: Any, **kwargs: Any) -> Any:
        die("before the intent")
        return write(*args, **kwargs)

    def submitting(self: Any, job: Any) -> Any:
        die("between intent and submission")
        found = submit(self, job)
        die("after the submission")
        return found

    def settling(*args: Any) -> Any:
        outcome = settle(*args)
        if outcome is not None:
            die("collecting")
        return outcome

    job_loop.write_job, kind.submit, kind.poll_s = writing, submitting, 0.1
    job_loop.Settler.settle = settling  # type: ignore[method-assign]
    sys.argv = ["harness", *words]
    main()


@contextmanager
def jobs_of(scheduler: str) -> Iterator[Callable[[Study], list[str]]]:
    """Start what has the jobs, and yield what says which jobs of a study are too many or were lost."""
    if scheduler != "slurm":
        yield lambda study: _count(len([*study.folder.glob("pbs/*.number")]), study) if scheduler == "pbs" else []
        return
    from tests.cluster.slurm import missing, running

    if why := missing():
        sys.exit(why)
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        Path(name).chmod(0o755)
        with running(Path(name), own_hosts=True) as cluster:
            os.environ["SLURM_CONF"] = str(cluster.config)
            before: list[str] = []

            def judge(study: Study) -> list[str]:
                said = cluster.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i %j %T").splitlines()
                own = [line for line in said if line not in before]
                before.extend(own)
                wrong = [f"a job of Slurm's: {line}" for line in own if not line.endswith(" COMPLETED")]
                return wrong + _count(len(own), study)

            yield judge


def _count(jobs: int, study: Study) -> list[str]:
    wanted = 1 if "turns" in study.words else study.launches
    return [f"{jobs} jobs for {study.launches} launches"] if jobs != wanted else []


def main() -> int:
    """Kill as often as asked, and print what was killed when, and what was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--scheduler", default="local", choices=("local", "pbs", "slurm"))
    parser.add_argument("--real", action="store_true", help="train (local only)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no kill after so many")
    parser.add_argument("--child", choices=MOMENTS, help=argparse.SUPPRESS)
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, words = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    if own.child:
        child(own.child, own.seed, own.scheduler, words)
        return 0
    if own.real and own.scheduler != "local":
        parser.error("--real is for --scheduler local")
    moments, found, ended = run(own.kills, own.scheduler, own.seed, real=own.real, seconds=own.seconds)
    for moment, times in sorted(moments.items()):
        print(f"{times:4}  {moment}")
    print(f"{moments.total()} kills of {own.scheduler} sweeps in {ended} studies: {len(found)} faults")
    print("\n".join(found))
    return bool(found)


def run(
    kills: int, scheduler: str, seed: int, *, real: bool = False, seconds: float = float("inf"), repeats: int = 4
) -> tuple[Counter[str], list[str], int]:
    """Return the moments of so many kills, the faults, and the number of studies that came to their end."""
    moments: Counter[str] = Counter()
    found: list[str] = []
    studies = 0
    deadline = time.monotonic() + seconds
    with jobs_of(scheduler) as judge:
        while moments.total() < kills and time.monotonic() < deadline:
            modes = MODES.get(scheduler, ("jobs",))
            with tempfile.TemporaryDirectory(prefix="harness-crash-") as name:
                chance = random.Random(f"{seed}/{studies}")
                mode = modes[studies % len(modes)]
                study = build(Path(name), scheduler, chance, real=real, mode=mode, repeats=2 if real else repeats)
                most = kills - moments.total()
                while study.moments.total() < most and time.monotonic() < deadline and (moment := study.kill()):
                    print(f"study {studies + 1}, kill {study.moments.total()}: {moment}", flush=True)
                    study.look()
                study.finish()
                study.found += judge(study)
                print(f"study {studies + 1} ended: {len(study.found)} faults", *study.found, sep="\n  ", flush=True)
                moments += study.moments
                found += study.found
                studies += 1
    return moments, found, studies


if __name__ == "__main__":
    sys.exit(main())
