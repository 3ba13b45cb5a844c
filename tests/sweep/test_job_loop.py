"""A job that no answer lists: only a sentence of the scheduler, accounting or the disk says that it has ended."""

from pathlib import Path

import pytest

from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep import job_loop
from harness.sweep.execute import cancel_launches
from harness.sweep.schedulers import Scheduler
from harness.sweep.status import read_status
from harness.sweep.sweep_files import read_running
from tests.labs.queues import Queue, VirtualTime, sweep
from tests.labs.sentences import refuses, says
from tests.labs.sweep_lab import Lab

pytestmark = pytest.mark.slow  # a double's commands are processes: some seconds each

SCHEDULERS = ("slurm", "pbs", "flux")


@pytest.fixture
def clock(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """Let the loop's time pass without waiting, half a minute from poll to poll."""
    virtual_time = VirtualTime()
    monkeypatch.setattr(job_loop, "time", virtual_time)
    monkeypatch.setattr(Scheduler, "poll_s", 30.0)
    return virtual_time


def submit(lab: Lab, scheduler: str, clock: VirtualTime) -> Path:
    """Submit four jobs, interrupt the command that waits for them, and return the sweep's folder."""
    clock.left = 1
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, scheduler, "jobs")
    clock.left = 1000
    return sweep_folders(lab.results)[0]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_job_that_no_answer_lists_is_not_submitted_again(
    scheduler: str, lab: Lab, queue: Queue, clock: VirtualTime
) -> None:
    folder = submit(lab, scheduler, clock)
    jobs = [running.job for running in read_running(SweepFolder(folder))]
    queue.set_states("hidden")
    for _ in range(2):
        with refuses(jobs[0], f"harness cancel {folder.name}"):
            sweep(lab, scheduler, "jobs")
        assert [running.job for running in read_running(SweepFolder(folder))] == jobs
    assert queue.submissions == 4
    status = read_status(folder)
    assert (status.count("unknown"), status.count("failed")) == (4, 0)
    says(status.entries[0].detail, "harness cancel")
    queue.set_states("running")
    assert read_status(folder).count("unknown") == 0


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_job_of_which_the_scheduler_says_that_it_does_not_know_it_has_ended(
    scheduler: str, lab: Lab, queue: Queue, clock: VirtualTime
) -> None:
    submit(lab, scheduler, clock)
    queue.set_states("forgotten")
    clock.left = 8
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, scheduler, "jobs")
    assert queue.submissions == 8


def test_cancel_gives_up_what_no_answer_lists_and_says_how_it_is_ended(
    lab: Lab, queue: Queue, clock: VirtualTime
) -> None:
    folder = submit(lab, "slurm", clock)
    job = read_running(SweepFolder(folder))[0].job
    queue.set_states("hidden")
    assert cancel_launches(folder) == (4, False)
    assert read_running(SweepFolder(folder)) == ()
    status = read_status(folder)
    assert status.count("failed") == 4
    assert any(f"scancel --quiet {job}" in entry.detail for entry in status.entries)


def test_accounting_that_does_not_answer_is_no_end(lab: Lab, queue: Queue, clock: VirtualTime) -> None:
    submit(lab, "slurm", clock)
    queue.set_states("forgotten")
    sacct = queue.folder.parent / "bin/sacct"
    sacct.write_text("#!/bin/sh\necho 'sacct: error: Unable to connect to slurmdbd' >&2; exit 1\n")
    with refuses("harness cancel"):
        sweep(lab, "slurm", "jobs")
    assert queue.submissions == 4
    sacct.write_text('#!/bin/sh\nfor id in 101 102 103 104; do echo "$id|NODE_FAIL|1:0|n1"; done\n')
    clock.left = 8
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, "slurm", "jobs")
    assert queue.submissions == 8
