"""No launch has two living jobs, whatever becomes of answers, of jobs, and of the commands that submit them."""

import importlib
import os
import random
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from harness.base.errors import RunError, UserError
from harness.comm.mpi_library import find_mpi
from harness.sweep import job_cost, job_loop, job_submission, launch_command, scheduler_answers
from harness.sweep.scheduler_answers import SubmissionUnknown
from harness.sweep.schedulers import JobFiles, Scheduler, flux, slurm
from harness.sweep.sweep_files import Running
from tests.labs.disturbed_queue import DisturbedQueue
from tests.labs.factories import START, make_job
from tests.labs.queues import Queue, sweep
from tests.labs.sweep_lab import Lab

WAYS = (
    *(("slurm", "jobs"), ("pbs", "jobs"), ("flux", "jobs")),
    *(("slurm", "turns"), ("pbs", "array"), ("flux", "turns"), ("slurm", "array"), ("pbs", "turns")),
)
_COMMANDS = 4  # of each seed, one after the other


class Seeds:
    """Sweeps by a disturbed queue, each in a folder of its own; every command is a process, which may be killed."""

    def __init__(self, lab: Lab, folder: Path, double: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lab = lab
        self._folder = folder
        self._double = double
        self._monkeypatch = monkeypatch
        self.said: Counter[str] = Counter()

    def run(self, seed: int) -> list[str]:
        """Return what was wrong with a seed: launches with two living jobs, and commands that ended with a stack."""
        folder = self._folder / str(seed)
        results = folder / "results"
        folder.mkdir(parents=True)
        self._monkeypatch.setattr(Lab, "results", property(lambda lab: results))
        self._monkeypatch.setattr(self._double, "FOLDER", folder)
        self._monkeypatch.setattr(self._double, "JOBS", folder / "jobs")
        scheduler, mode = WAYS[seed % len(WAYS)]
        for number in range(_COMMANDS):
            chance = random.Random(f"{seed}/{number}")
            process = os.fork()
            if not process:
                self._be_a_command(DisturbedQueue(folder, self._double, results, chance), scheduler, mode)
            _, status = os.waitpid(process, 0)
            self.said[f"command: {'killed' if os.WIFSIGNALED(status) else 'ended'}"] += 1
        queue = DisturbedQueue(folder, self._double, results, random.Random())
        self.said.update(queue.said)
        stacks = [path.read_text() for path in folder.glob("stack-*.txt")]
        return [f"seed {seed}, {scheduler}, {mode}: {fault}" for fault in (*queue.doubles, *stacks)]

    def _be_a_command(self, queue: DisturbedQueue, scheduler: str, mode: str) -> None:
        """Give the sweep command, and end this process."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):
            os.dup2(nowhere, number)
        for module in (job_loop, job_submission, job_cost):
            module.time = queue  # type: ignore[attr-defined]
        scheduler_answers.run_program = queue.run
        write = job_loop.write_running

        def write_and_die(*arguments: object) -> None:
            queue.kill_perhaps(0.01)
            write(*arguments)  # type: ignore[arg-type]
            queue.kill_perhaps(0.01)

        job_loop.write_running = write_and_die  # type: ignore[assignment]
        try:
            sweep(self._lab, scheduler, mode, retries=1)
        except (RunError, UserError, KeyboardInterrupt):
            pass
        except BaseException:  # noqa: BLE001  a command must never end with a stack
            (self._folder / f"stack-{os.getpid()}.txt").write_text(traceback.format_exc())
        queue.save()
        os._exit(0)


@pytest.fixture
def seeds(lab: Lab, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seeds:
    """Return what runs seeds, with the waits of a real queue."""
    monkeypatch.setattr(Scheduler, "poll_s", 2.0)
    monkeypatch.setattr(job_submission, "ARRIVAL_S", 30.0)
    monkeypatch.setattr(scheduler_answers, "COMMAND_LIMIT_S", 120.0)
    double = importlib.import_module("tests.labs.fake_queue")
    for name in ("harness.sweep.execute", "harness.sweep.schedulers.pbs", "jinja2"):
        importlib.import_module(name)  # once, and not in every command
    mpi = find_mpi()
    for module in (launch_command, slurm, flux):
        monkeypatch.setattr(module, "find_mpi", lambda: mpi)
    return Seeds(lab, tmp_path / "seeds", double, monkeypatch)


def check(seeds: Seeds, numbers: range) -> None:
    """Run seeds, show what happened, and fail with what was wrong."""
    wrong = [fault for number in numbers for fault in seeds.run(number)]
    print(f"{len(numbers)} sweeps by disturbed queues: {dict(sorted(seeds.said.items()))}")
    assert not wrong, "\n".join(wrong[:20])
    assert seeds.said["command: killed"] and seeds.said["job: hidden"] and seeds.said["submission: late, lost"]


def test_no_launch_has_two_living_jobs(seeds: Seeds) -> None:
    check(seeds, range(16))


class SilentSlurm(slurm.Scheduler):
    """A Slurm that loses the answer to a submission, then says nothing, then once not all that it has."""

    poll_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._silent_looks = 3
        self._empty_looks = 1

    def submit(self, job: JobFiles) -> tuple[str, ...]:
        raise SubmissionUnknown(f"no answer about {job.name}", lost=True)

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        if self._silent_looks:
            self._silent_looks -= 1
            raise UserError("Unable to contact slurm controller")
        if self._empty_looks:
            self._empty_looks -= 1
            return {}
        return dict.fromkeys(names, "7")


def test_one_answer_without_a_job_does_not_say_that_it_was_not_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_submission, "ARRIVAL_S", 0.0)  # the silence has lasted as long
    job = make_job(tmp_path, "")
    job.files.jobs.mkdir(exist_ok=True)
    (point,) = job.points
    launch = Running(point=point, job="", started=START, scheduler="slurm", name=job.name)
    assert job_submission.JobQueue(scheduler=SilentSlurm(), files=job.files).submit(job, [launch], print) == ("7",)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("begin", range(16, 1016, 100))
def test_no_launch_of_a_thousand_sweeps_has_two_living_jobs(begin: int, seeds: Seeds) -> None:
    check(seeds, range(begin, begin + 100))
