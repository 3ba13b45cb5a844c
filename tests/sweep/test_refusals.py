"""What a scheduler's words mean for a submission: a refusal with its reason, a full queue, or a lost answer."""

from pathlib import Path

import pytest

from harness.base.errors import RunError
from harness.base.processes import Reply
from harness.schema.sweep_folder import sweep_folders
from harness.sweep.schedulers import flux, pbs, slurm
from harness.sweep.status import read_status
from harness.sweep.submission_errors import (
    FIX,
    NotQueued,
    Outcome,
    QueueFull,
    Reason,
    SubmissionRefused,
    SubmissionUnknown,
    submission_error,
)
from tests.labs.code_sentences import worded
from tests.labs.queues import Queue, sweep
from tests.labs.refusals import refused
from tests.labs.sweep_lab import Lab

FAILED = "sbatch: error: Batch job submission failed: "
POLICY = f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
SLURM = {
    f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)": Reason.TIME_LIMIT,
    f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}": Reason.TIME_LIMIT,
    f"sbatch: error: AssocMaxWallDurationPerJobLimit\n{POLICY}": Reason.TIME_LIMIT,
    f"sbatch: error: QOSMaxNodePerJobLimit\n{POLICY}": Reason.NODES,
    f"sbatch: error: QOSMaxCpuPerJobLimit\n{POLICY}": Reason.CORES,
    f"sbatch: error: QOSMinGRES\n{POLICY}": Reason.GPUS,
    f"sbatch: error: QOSMaxMemoryPerJob\n{POLICY}": Reason.MEMORY,
    f"sbatch: error: AssocGrpCPUMinutesLimit\n{POLICY}": Reason.POLICY,
    f"sbatch: error: QOSNotAllowed\n{POLICY}": Reason.QOS,
    f"{FAILED}Invalid qos specification": Reason.QOS,
    f"{FAILED}Invalid account or account/partition combination specified": Reason.ACCOUNT,
    f"sbatch: error: invalid partition specified: nowhere\n{FAILED}Invalid partition name specified": Reason.PARTITION,
    f"{FAILED}User's group not permitted to use this partition": Reason.PARTITION,
    f"{FAILED}Node count specification invalid": Reason.NODES,
    f"{FAILED}More processors requested than permitted": Reason.CORES,
    f"sbatch: error: Memory specification can not be satisfied\n{FAILED}Requested node configuration is not "
    "available": Reason.MEMORY,
    f"{FAILED}Invalid generic resource (gres) specification": Reason.GPUS,
    f"{FAILED}Invalid feature specification": Reason.FEATURE,
    f"sbatch: error: CPU count per node can not be satisfied\n{FAILED}Requested node configuration is not "
    "available": Reason.RESOURCES,
    f"{FAILED}Invalid job array specification": Reason.ARRAY,
    f"{FAILED}Job dependency problem": Reason.DEPENDENCY,
    f"{FAILED}Access denied to requested reservation": Reason.RESERVATION,
    f"{FAILED}System submissions disabled": Reason.CLOSED,
    "sbatch: unrecognized option '--nonsense'": Reason.SCRIPT,
    f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}": Outcome.FULL,
    f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}": Outcome.FULL,
    f"sbatch: error: QOSGrpSubmitJobsLimit\n{POLICY}": Outcome.FULL,
    f"{FAILED}MaxJobCount limit reached": Outcome.FULL,
    POLICY: Outcome.FULL_OR_REFUSED,
    f"{FAILED}Socket timed out on send/recv operation": Outcome.LOST,
    f"{FAILED}Zero Bytes were transmitted or received": Outcome.LOST,
    f"{FAILED}Unable to contact slurm controller (connect failure)": Outcome.LOST,
    f"{FAILED}Rate limit exceeded, please retry momentarily": Outcome.LOST,
    f"{FAILED}Unspecified error": None,
}
PBS = {
    "qsub: Unknown queue": Reason.PARTITION,
    "qsub: Access to queue is denied": Reason.PARTITION,
    "qsub: Job violates queue and/or server resource limits": Reason.POLICY,
    "qsub: Invalid Account": Reason.ACCOUNT,
    "qsub: Array job exceeds server or queue size limit": Reason.ARRAY,
    "qsub: Unknown resource: ncpu": Reason.SCRIPT,
    "qsub: Maximum number of jobs already in queue workq": Outcome.FULL,
    "qsub: would exceed queue workq's per-user limit of jobs in 'Q' state": Outcome.FULL,
    "qsub: would exceed queue workq's per-user limit": Outcome.FULL,
    "qsub: would exceed per-user limit on resource ncpus in queue workq for jobs in 'Q' state": Outcome.FULL_OR_REFUSED,
    "Connection refused\nqsub: cannot connect to server head (errno=15010)": Outcome.LOST,
    "qsub: Request not allowed: Server shutting down": Outcome.LOST,
    "qsub: please tell your project": None,
}
FLUX = {
    "flux-batch: ERROR: [Errno 22] requested duration exceeds policy limit of 1h": Reason.TIME_LIMIT,
    "flux-batch: ERROR: [Errno 22] requested nnodes exceeds policy limit of 4": Reason.NODES,
    "flux-batch: ERROR: [Errno 22] requested ncores exceeds policy limit of 4": Reason.CORES,
    "flux-batch: ERROR: [Errno 22] unsatisfiable request": Reason.RESOURCES,
    "flux-batch: ERROR: [Errno 22] Invalid queue 'x' specified": Reason.PARTITION,
    "flux-batch: ERROR: [Errno 22] job submission is disabled": Reason.CLOSED,
    "flux-batch: ERROR: [Errno 22] user has max number of jobs submitted already": Outcome.FULL,
    "flux-batch: ERROR: [Errno 111] Unable to connect to Flux: Connection refused": Outcome.LOST,
    "flux-batch: ERROR: something else": None,
}
CASES = [
    *(("sbatch", slurm.SUBMISSIONS, text, means) for text, means in SLURM.items()),
    *(("qsub", pbs.SUBMISSIONS, text, means) for text, means in PBS.items()),
    *(("flux batch", flux.SUBMISSIONS, text, means) for text, means in FLUX.items()),
]


@pytest.mark.parametrize(("program", "table", "text", "means"), CASES, ids=lambda value: str(value)[-40:])
def test_a_text_of_a_scheduler_has_one_meaning(
    program: str, table: slurm.Sequence[object], text: str, means: Reason | Outcome | None
) -> None:
    error = submission_error(program, Reply(code=1, out="", err=text), table)  # type: ignore[arg-type]
    if isinstance(means, Reason):
        assert isinstance(error, SubmissionRefused) and error.reason is means
        assert FIX[means] in str(error)
    elif means in (Outcome.FULL, Outcome.FULL_OR_REFUSED):
        assert isinstance(error, QueueFull) and error.certain is (means is Outcome.FULL)
    else:
        assert isinstance(error, SubmissionUnknown) and error.lost is (means is Outcome.LOST)


def test_a_command_without_an_answer_and_an_exit_code_of_pbs() -> None:
    silent = submission_error("qsub", Reply(code=None, out="", err="no answer within 120 s"), pbs.SUBMISSIONS)
    assert isinstance(silent, SubmissionUnknown) and silent.lost
    hook = Reply(code=15046 % 256, out="", err="qsub: the site says: enough")
    full = submission_error("qsub", hook, pbs.SUBMISSIONS, pbs._CODES)
    assert isinstance(full, QueueFull) and full.certain
    assert not issubclass(NotQueued, SubmissionRefused)


TOO_LONG = f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)"
LAYOUT_REFUSALS = [
    ("slurm", TOO_LONG, "time limit"),
    ("slurm", f"{FAILED}Node count specification invalid", "node count"),
    ("slurm", f"{FAILED}Requested node configuration is not available", "resources of a node"),
    ("slurm", f"{FAILED}a word of the site's own plugin", "reason of its own"),
    ("pbs", "qsub: Job violates queue and/or server resource limits", "policy"),
    ("flux", "flux-batch: ERROR: [Errno 22] requested nnodes exceeds policy limit of 1", "node count"),
]


@pytest.mark.parametrize(("scheduler", "text", "reason"), LAYOUT_REFUSALS)
def test_a_layout_that_is_refused_is_told_once_and_the_others_go_on(
    scheduler: str,
    text: str,
    reason: str,
    lab: Lab,
    queue: Queue,
    until: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("harness.sweep.job_submission._ARRIVAL_S", 0.2)
    queue.always(n2=text)
    until(4)  # type: ignore[operator]
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, scheduler, "jobs")
    assert (queue.names.total(), queue.submissions) == (2, 3)  # one submission of two nodes, not two, and not again
    (folder,) = sweep_folders(lab.results)
    status = read_status(folder)
    assert (status.count("queued"), status.count("failed")) == (2, 2)
    assert all(f"({reason})" in entry.detail for entry in status.entries if entry.state == "failed")
    printed = capsys.readouterr().out
    worded(printed, "sweep.job_loop.Launches._refuse", 2, "2 ranks", reason)
    assert printed.count("2 ranks:") == 1


@pytest.mark.parametrize(
    ("scheduler", "text"),
    [
        ("slurm", f"{FAILED}Invalid account or account/partition combination specified"),
        ("slurm", f"{FAILED}Invalid qos specification"),
        ("slurm", f"{FAILED}Access denied to requested reservation"),
        ("pbs", "qsub: Unknown queue"),
        ("flux", "flux-batch: ERROR: [Errno 22] job submission is disabled"),
    ],
)
def test_what_is_wrong_for_every_layout_is_submitted_once_and_ends_the_command(
    scheduler: str,
    text: str,
    lab: Lab,
    queue: Queue,
) -> None:
    queue.always(n1=text, n2=text)
    with pytest.raises(SubmissionRefused):
        sweep(lab, scheduler, "jobs")
    assert (queue.names.total(), queue.submissions) == (0, 1)


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
    with pytest.raises(SubmissionRefused) as caught:
        sweep(lab, "slurm", "jobs")
    assert caught.value.reason is Reason.POLICY
    assert queue.submissions == 2  # one for each layout


def test_a_full_queue_of_other_jobs_ends_the_command(lab: Lab, queue: Queue) -> None:
    queue.next(f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}")
    with pytest.raises(QueueFull, match="MAX_JOBS"):
        sweep(lab, "slurm", "jobs")


@pytest.mark.parametrize("shape", ["array", "nested"])
def test_what_shares_a_job_with_a_refused_layout_goes_on_without_it(
    shape: str,
    lab: Lab,
    queue: Queue,
    until: object,
) -> None:
    queue.always(n2=TOO_LONG)
    until(4)  # type: ignore[operator]
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, "slurm", shape)
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
    monkeypatch.setattr("harness.sweep.outcome._GRACE_S", 0.0)
    queue.always(n2=TOO_LONG)

    def end(seconds: float) -> None:
        queue.end()

    monkeypatch.setattr("harness.sweep.job_loop.time.sleep", end)
    with refused("sweep.execute.run_sweep", "4", error=RunError):
        sweep(lab, "slurm", "jobs")
    monkeypatch.undo()


def test_an_unknown_command_is_told_before_anything_is_looked_for(
    lab: Lab,
    queue: Queue,
) -> None:
    (queue.folder.parent / "bin/qsub").unlink()
    with refused("sweep.scheduler_commands.CommandRunner.submit"):
        sweep(lab, "pbs", "jobs")
