"""What a scheduler's words mean for a submission: a refusal with its reason, a full queue, or a lost answer."""

from pathlib import Path

import pytest

from harness.base.errors import RunError
from harness.base.processes import Reply
from harness.schema.sweep_folder import sweep_folders
from harness.sweep.scheduler_answers import (
    QueueFull,
    RetryPhrases,
    SubmissionRefused,
    SubmissionUnknown,
    submission_error,
)
from harness.sweep.schedulers import flux, pbs, slurm
from harness.sweep.status import read_status
from tests.labs.queues import Queue, sweep
from tests.labs.sentences import refuses, says
from tests.labs.sweep_lab import Lab

FAILED = "sbatch: error: Batch job submission failed: "
POLICY = f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
NAMED = "sbatch: error: {}\n" + POLICY
LOST, FULL, FULL_OR_TOO_LARGE, OWN = "lost", "full", "full or too large", "the scheduler's own sentence"
SLURM = {
    f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}": FULL,
    f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}": FULL,
    f"sbatch: error: QOSGrpSubmitJobsLimit\n{POLICY}": FULL,
    f"{FAILED}MaxJobCount limit reached": FULL,
    POLICY: FULL_OR_TOO_LARGE,
    f"{FAILED}Socket timed out on send/recv operation": LOST,
    f"{FAILED}Zero Bytes were transmitted or received": LOST,
    f"{FAILED}Unable to contact slurm controller (connect failure)": LOST,
    f"{FAILED}Rate limit exceeded, please retry momentarily": LOST,
    f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)": OWN,
    NAMED.format("QOSMaxWallDurationPerJobLimit"): OWN,
    NAMED.format("AssocMaxWallDurationPerJobLimit"): OWN,
    NAMED.format("QOSMaxNodePerJobLimit"): OWN,
    NAMED.format("QOSMinGRES"): OWN,
    NAMED.format("AssocGrpCPUMinutesLimit"): OWN,
    NAMED.format("QOSNotAllowed"): OWN,
    f"{FAILED}Unspecified error": OWN,
}
PBS = {
    "qsub: Maximum number of jobs already in queue workq": FULL,
    "qsub: would exceed queue workq's per-user limit of jobs in 'Q' state": FULL,
    "qsub: would exceed queue workq's per-user limit": FULL,
    "qsub: would exceed per-user limit on resource ncpus in queue workq for jobs in 'Q' state": FULL_OR_TOO_LARGE,
    "Connection refused\nqsub: cannot connect to server head (errno=15010)": LOST,
    "qsub: Request not allowed: Server shutting down": LOST,
    "qsub: Unknown queue": OWN,
    "qsub: please tell your project": OWN,
}
FLUX = {
    "flux-batch: ERROR: [Errno 22] user has max number of jobs submitted already": FULL,
    "flux-batch: ERROR: [Errno 111] Unable to connect to Flux: Connection refused": LOST,
    "flux-batch: ERROR: [Errno 22] requested nnodes exceeds policy limit of 4": OWN,
    "flux-batch: ERROR: something else": OWN,
}
CASES = [
    *(("sbatch", slurm.SUBMISSIONS, text, means) for text, means in SLURM.items()),
    *(("qsub", pbs.SUBMISSIONS, text, means) for text, means in PBS.items()),
    *(("flux batch", flux.SUBMISSIONS, text, means) for text, means in FLUX.items()),
]


@pytest.mark.parametrize(("program", "phrases", "text", "means"), CASES, ids=lambda value: str(value)[-40:])
def test_a_lost_answer_and_a_full_queue_are_told_from_a_refusal(
    program: str, phrases: RetryPhrases, text: str, means: str
) -> None:
    error = submission_error(program, Reply(code=1, out="", err=text), phrases)
    if means in (FULL, FULL_OR_TOO_LARGE):
        assert isinstance(error, QueueFull) and error.certain is (means == FULL)
    else:
        assert isinstance(error, SubmissionUnknown) and error.lost is (means == LOST)
    assert text.splitlines()[0] in str(error)


def test_a_command_without_an_answer_and_an_exit_code_of_pbs() -> None:
    silent = submission_error("qsub", Reply(code=None, out="", err="no answer within 120 s"), pbs.SUBMISSIONS)
    assert isinstance(silent, SubmissionUnknown) and silent.lost
    for number, is_certain in ((15046, True), (15143, False)):
        hook = Reply(code=number % 256, out="", err="qsub: the site says: enough")
        full = submission_error("qsub", hook, pbs.SUBMISSIONS)
        assert isinstance(full, QueueFull) and full.certain is is_certain


TOO_LONG = f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)"
LAYOUT_REFUSALS = [
    ("slurm", TOO_LONG, "time limit"),
    ("slurm", f"{FAILED}a word of the site's own plugin", "own plugin"),
    ("pbs", "qsub: Job violates queue and/or server resource limits", "resource limits"),
    ("flux", "flux-batch: ERROR: [Errno 22] requested nnodes exceeds policy limit of 1", "policy limit of 1"),
]


@pytest.fixture(autouse=True)
def no_long_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a refused job for a moment only."""
    monkeypatch.setattr("harness.sweep.job_submission.ANSWERED_S", 0.2)


@pytest.mark.parametrize(("scheduler", "text", "words"), LAYOUT_REFUSALS)
def test_a_layout_that_is_refused_is_told_once_and_the_others_go_on(
    scheduler: str,
    text: str,
    words: str,
    lab: Lab,
    queue: Queue,
    until: object,
    capsys: pytest.CaptureFixture[str],
) -> None:
    queue.always(n2=text)
    until(4)  # type: ignore[operator]
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, scheduler, "jobs")
    assert (queue.names.total(), queue.submissions) == (2, 3)  # one submission of two nodes, not two, and not again
    (folder,) = sweep_folders(lab.results)
    status = read_status(folder)
    assert (status.count("queued"), status.count("failed")) == (2, 2)
    assert all(words in entry.detail for entry in status.entries if entry.state == "failed")
    printed = capsys.readouterr().out
    says(printed, "the others are idle", 2, "2 ranks", words)
    assert printed.count("2 ranks:") == 1


@pytest.mark.parametrize(
    ("scheduler", "text"),
    [
        ("slurm", f"{FAILED}Invalid account or account/partition combination specified"),
        ("pbs", "qsub: Unknown queue"),
        ("flux", "flux-batch: ERROR: [Errno 22] job submission is disabled"),
    ],
)
def test_what_is_wrong_for_every_layout_is_submitted_once_for_each_and_ends_the_command(
    scheduler: str,
    text: str,
    lab: Lab,
    queue: Queue,
) -> None:
    queue.always(n1=text, n2=text)
    with pytest.raises(SubmissionRefused) as caught:
        sweep(lab, scheduler, "jobs")
    assert text in str(caught.value)
    assert (queue.names.total(), queue.submissions) == (0, 2)


@pytest.mark.parametrize("text", [POLICY, f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}"])
def test_a_full_queue_is_left_alone_until_a_job_ends(
    text: str,
    lab: Lab,
    queue: Queue,
    until: object,
) -> None:
    queue.next("ok", "ok", text)
    until(20)  # type: ignore[operator]
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, "slurm", "jobs")
    assert (queue.names.total(), queue.submissions) == (2, 3)


def test_a_policy_that_refuses_a_job_when_none_is_queued_is_a_refusal(
    lab: Lab,
    queue: Queue,
) -> None:
    queue.always(n1=POLICY, n2=POLICY)
    with pytest.raises(SubmissionRefused):
        sweep(lab, "slurm", "jobs")
    assert queue.submissions == 2  # one for each layout


def test_a_full_queue_of_other_jobs_ends_the_command(lab: Lab, queue: Queue) -> None:
    queue.next(f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}")
    with pytest.raises(QueueFull, match="--max-jobs"):
        sweep(lab, "slurm", "jobs")


@pytest.mark.parametrize("mode", ["array", "turns"])
def test_what_shares_a_job_with_a_refused_layout_goes_on_without_it(
    mode: str,
    lab: Lab,
    queue: Queue,
    until: object,
) -> None:
    queue.always(n2=TOO_LONG)
    until(4)  # type: ignore[operator]
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, "slurm", mode)
    assert (queue.names.total(), queue.submissions) == (1, 2)
    (folder,) = sweep_folders(lab.results)
    status = read_status(folder)
    assert status.count("failed") == 2
    assert status.count("queued") == 2


def test_refused_launches_are_counted_and_the_same_command_tries_them_again(
    lab: Lab,
    queue: Queue,
    until: object,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("harness.sweep.job_loop.GRACE_S", 0.0)
    queue.always(n2=TOO_LONG)

    def end(seconds: float) -> None:
        queue.set_states("ended")

    monkeypatch.setattr("harness.sweep.job_loop.time.sleep", end)
    with refuses("whatever finished is kept", "4", error=RunError):
        sweep(lab, "slurm", "jobs")
    monkeypatch.undo()


def test_an_unknown_command_is_told_before_anything_is_looked_for(
    lab: Lab,
    queue: Queue,
) -> None:
    (queue.folder.parent / "bin/qsub").unlink()
    with refuses("is not here: run"):
        sweep(lab, "pbs", "jobs")
