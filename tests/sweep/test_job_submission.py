"""Nothing is submitted twice: every way in which a submission command can fail, on a double of each scheduler."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep import job_submission
from harness.sweep.execute import cancel_launches
from harness.sweep.status import read_status
from harness.sweep.sweep_files import read_running
from tests.labs.queues import Queue, sweep
from tests.labs.sentences import refuses, says
from tests.labs.sweep_lab import Lab, wait_for

pytestmark = pytest.mark.slow  # many short launches by doubles of schedulers: a minute together

OFTEN = (("slurm", "jobs"), ("slurm", "turns"), ("pbs", "array"), ("flux", "jobs"))
SELDOM = (("slurm", "array"), ("pbs", "jobs"), ("pbs", "turns"))
WAYS = (*OFTEN, *(pytest.param(*way, marks=pytest.mark.slow) for way in SELDOM))
# What the double does with the first submission, and how many submissions there are for three launches of two layouts.
OPEN = (
    "accept_then_fail",
    "answer_late",
    "accept_then_hang",
    "accept_after_fail",
    "no_number",
    "accept_then_run",
)
NOT_THERE = ("fail_first", "hang_first")
JOBS = {"jobs": 4, "array": 2, "turns": 1}


@pytest.mark.parametrize(("scheduler", "mode"), WAYS)
@pytest.mark.parametrize("fault", OPEN)
def test_a_job_that_was_queued_whatever_its_submission_said_is_not_submitted_again(
    fault: str,
    scheduler: str,
    mode: str,
    lab: Lab,
    queue: Queue,
    until: Callable[[int], None],
) -> None:
    queue.next(fault)
    until(1)
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, scheduler, mode)
    assert set(queue.names.values()) == {1}
    assert queue.names.total() == queue.submissions == JOBS[mode]
    (folder,) = sweep_folders(lab.results)
    if fault != "accept_then_run":  # its failed launches are launched again
        assert {running.job != "" for running in read_running(SweepFolder(folder))} == {True}
        until(1)
        with pytest.raises(KeyboardInterrupt):
            sweep(lab, scheduler, mode)
        assert queue.names.total() == queue.submissions == JOBS[mode]
        assert read_status(folder).count("queued") == 4


def test_ctrl_c_names_the_job_that_goes_on(
    lab: Lab, queue: Queue, until: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    until(1)
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, "slurm", "turns")
    assert queue.submissions == 1
    says(capsys.readouterr().out, "job 101 goes on", "harness cancel")


@pytest.mark.parametrize(("scheduler", "mode"), WAYS)
@pytest.mark.parametrize("fault", NOT_THERE)
def test_a_job_that_did_not_reach_the_queue_is_submitted_again(
    fault: str,
    scheduler: str,
    mode: str,
    lab: Lab,
    queue: Queue,
    until: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_submission, "ARRIVAL_S", 0.3)
    queue.next(fault)
    until(3)
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, scheduler, mode)
    assert set(queue.names.values()) == {1}
    assert (queue.names.total(), queue.submissions) == (JOBS[mode], JOBS[mode] + 1)


PATCHED = (
    "import os; from harness.sweep import job_submission; job_submission.ARRIVAL_S = 20.0; "
    "from harness.sweep.schedulers import Scheduler; Scheduler.poll_s = 0.1; "
    "from harness.__main__ import main; main()"
)


@pytest.mark.slow
@pytest.mark.parametrize(("scheduler", "mode"), [*OFTEN, *SELDOM])
@pytest.mark.parametrize("fault", ["kill_then_accept", "accept_then_kill"])
def test_the_next_command_finds_what_a_killed_one_was_submitting(
    fault: str,
    scheduler: str,
    mode: str,
    lab: Lab,
    queue: Queue,
    until: Callable[[int], None],
) -> None:
    words = ["sweep", "--data", str(lab.workload.data_file), "--nodes", "1..2", "--repeats", "2"]
    words += ["--scheduler", scheduler, "--results", str(lab.results), "--yes"]
    words += ["--mode", mode]
    words += ["--launcher", "mpirun"] if scheduler == "slurm" else []
    command = [sys.executable, "-c", PATCHED, *words]
    queue.next(fault)
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -9, killed.stdout + killed.stderr
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as second:
        try:
            wait_for(lambda: queue.names.total() == JOBS[mode], "all jobs")
            time.sleep(0.5)
        finally:
            second.kill()
    # A submission that is given up before the queue has taken it is made again: what counts is what the queue has.
    assert set(queue.names.values()) == {1}
    assert queue.names.total() == JOBS[mode]


def test_a_scheduler_that_does_not_say_whether_it_has_a_job_ends_the_command_and_the_next_one_asks_first(
    lab: Lab,
    queue: Queue,
    until: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_submission, "PATIENCE_S", 0.5)
    squeue = queue.folder.parent / "bin/squeue"
    answers = squeue.read_text()
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n")
    queue.next("accept_then_fail")
    for _ in range(2):  # and so does the next command
        with refuses("the same command looks for it first"):
            sweep(lab, "slurm", "jobs")
        assert queue.submissions == 1
    squeue.write_text(answers)
    until(1)
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, "slurm", "jobs")
    assert set(queue.names.values()) == {1}
    assert queue.submissions == 4


def test_what_is_under_way_is_not_forgotten_by_status_and_cancel(
    lab: Lab,
    queue: Queue,
    until: Callable[[int], None],
) -> None:
    queue.next("accept_then_fail", "accept_after_fail")
    until(1)
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, "pbs", "jobs")
    (folder,) = sweep_folders(lab.results)
    assert read_status(folder).count("queued") == 4
    queue.set_states("ended")
    until(1000)
    assert cancel_launches(folder) == (4, False)


def test_a_lost_connection_is_given_up_in_the_end(
    lab: Lab,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_submission, "ARRIVAL_S", 0.1)
    monkeypatch.setattr("harness.sweep.job_loop.PATIENCE_S", 0.5)
    queue.next(*["fail_first"] * 50)
    with refuses("was not queued"):
        sweep(lab, "slurm", "jobs")
    assert queue.names.total() == 0
    (folder,) = sweep_folders(lab.results)
    assert read_running(SweepFolder(folder)) == ()
