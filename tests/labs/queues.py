"""Doubles of a scheduler's queue."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.command_context import Context
from harness.schema.layout import Layout
from harness.sweep.site import JobRequest
from harness.sweep.submission_settings import Submission
from tests.labs.doubles import install
from tests.labs.sweep_lab import Lab

COMMANDS = (
    *("sbatch", "squeue", "sinfo", "scancel", "sacct", "scontrol", "srun"),
    *("qsub", "qstat", "qselect", "qdel", "pbsnodes", "flux"),
)


LAYOUTS = (Layout(nodes=1), Layout(nodes=2))


class Queue:
    """The double's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def next(self, *faults: str) -> None:
        """Say what becomes of the next submissions."""
        (self.folder / "faults.json").write_text(json.dumps(faults))

    def always(self, **texts: str) -> None:
        """Say with which text jobs of so many nodes are refused: ``n2="..."``."""
        (self.folder / "always.json").write_text(json.dumps({name[1:]: text for name, text in texts.items()}))

    @property
    def names(self) -> Counter[str]:
        """How often each job's name was queued."""
        jobs = (json.loads(path.read_text()) for path in (self.folder / "jobs").glob("*.json"))
        return Counter(job["name"] for job in jobs)

    @property
    def submissions(self) -> int:
        path = self.folder / "submissions.txt"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def answer(self, cells: str) -> None:
        """Say what squeue says of all jobs, from the state to the start."""
        for path in (self.folder / "jobs").glob("*.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"squeue": cells}))

    def set_states(self, state: str) -> None:
        """Let all jobs be in a state of the double's."""
        for path in (self.folder / "jobs").glob("*.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"state": state}))


def make_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """Put the double on PATH, scale the waits down and return its folder (the fixture `queue`)."""
    from harness.sweep import job_submission, scheduler_answers
    from harness.sweep.schedulers import Scheduler

    commands, folder = tmp_path / "bin", tmp_path / "queue"
    commands.mkdir()
    folder.mkdir()
    for name in COMMANDS:
        install("fake_queue.py", commands / name)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_QUEUE", str(folder))
    monkeypatch.setattr(Scheduler, "poll_s", 0.1)
    monkeypatch.setattr(job_submission, "ARRIVAL_S", 20.0)
    monkeypatch.setattr(scheduler_answers, "COMMAND_LIMIT_S", 5.0)
    monkeypatch.setattr(Lab, "results", property(lambda self: tmp_path / "results"))
    return Queue(folder)


def make_until(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return how to have Ctrl-C pressed after so many turns of the loop."""

    def set_up(turns: int) -> None:
        left = [turns]

        def sleep(seconds: float) -> None:
            left[0] -= 1
            if left[0] <= 0:
                raise KeyboardInterrupt

        pause = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
        monkeypatch.setattr("harness.sweep.job_loop.time", pause)

    return set_up


class VirtualTime:
    """A clock that passes where somebody sleeps; Ctrl-C is pressed when that has been `left` times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.left = 1000

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.left -= 1
        if self.left <= 0:
            raise KeyboardInterrupt


def sweep(lab: Lab, scheduler: str, mode: str, **settings: object) -> Path:
    from harness.sweep.execute import run_sweep

    request = JobRequest(mode=mode, launcher="mpirun" if scheduler == "slurm" else "auto", **settings)  # type: ignore[arg-type]
    submission = Submission(scheduler=scheduler, request=request)
    asked = replace(lab.sweep(), layouts=LAYOUTS)
    return run_sweep(asked, Context(results=lab.results), submission)
