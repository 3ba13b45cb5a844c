"""A job's way into the queue, and back to it: nothing is submitted twice, whatever becomes of the command that submits.

A job's name is on disk before it is submitted. While the outcome of a submission is unknown (the answer was lost or is
not understood, or the command was killed meanwhile), the job is looked for by that name before anything else is
submitted. Both the command that goes on and the next one do so.
"""

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.base.errors import UserError
from harness.base.record_words import shell_line
from harness.schema.record import read_accounts
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.job_plan import QUEUE_NAME, Job
from harness.sweep.scheduler_answers import COMMAND_LIMIT_S, NotQueued, SubmissionRefused, SubmissionUnknown
from harness.sweep.schedulers import Scheduler
from harness.sweep.sweep_files import Running

# How long after its command has ended a submission may still reach the queue: a busy controller works off what it has
# taken in, and its clients have given up by then.
ARRIVAL_S = 30.0
ANSWERED_S = 5.0  # the same where the scheduler has answered with a sentence of its own: most likely a refusal
PATIENCE_S = 600.0  # how long a scheduler may refuse to say whether it has a job
_PAUSE_S = 2.0  # between two looks at the queue
_LOOKS = 3  # so many answers without a job before it is not there: one may be cut off, or of the wrong moment

Say = Callable[[str], None]


@contextlib.contextmanager
def submission_under_way(files: SweepFolder) -> Iterator[int]:
    """Yield an open file for the submission command to inherit: it is locked until that command has ended too."""
    handle = os.open(files.submitting, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield handle
    finally:
        os.close(handle)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobQueue:
    """The queue of a `scheduler`, in which the jobs of the sweep of `files` are."""

    scheduler: Scheduler
    files: SweepFolder

    def submit(self, job: Job, launches: Sequence[Running], say: Say) -> tuple[str, ...]:
        """Submit `job`, of `launches`, and return its identifier, or one for each task.

        Where the outcome is not known the job is looked for by its name.

        Raises:
            QueueFull: the scheduler takes no more jobs for now.
            SubmissionRefused: it takes no such job.
            NotQueued: its answer was lost, and the job is not there.
            SubmissionUnknown: it does not say whether it has the job.
        """
        if not self.scheduler.survives_client:
            return self.scheduler.submit(job)
        try:
            with submission_under_way(self.files) as handle:
                self.scheduler.commands.handles = (handle,)
                return self.scheduler.submit(job)
        except SubmissionUnknown as error:
            say(f"it is not known whether job {job.name} was queued ({error}): looking for it")
            jobs = self._look(launches, ARRIVAL_S if error.lost else min(ANSWERED_S, ARRIVAL_S))
            if job.name not in jobs:
                if not error.lost:
                    raise SubmissionRefused(error.text) from error
                raise NotQueued(f"job {job.name} was not queued: {error}") from error
            number = jobs[job.name]
            say(f"job {job.name} was queued all the same, as {number}")
            return tuple(self.scheduler.task(number, index) for index in range(job.tasks)) or (number,)
        finally:
            self.scheduler.commands.handles = ()

    def find(self, launches: Sequence[Running]) -> dict[str, str]:
        """Return by name the identifiers of those jobs of `launches` that are queued or running, or have just run.

        One that has ended counts if it left an exit code, and no earlier command of this sweep has taken it in.

        Raises:
            UserError: the scheduler does not answer.
        """
        jobs = dict(self.scheduler.find(sorted({launch.name for launch in launches})))
        unlisted = (launch for launch in launches if launch.name not in jobs)
        ran = [launch for launch in unlisted if self.files.exit_code(launch.point.folder).exists()]
        if not ran:
            return jobs
        collected = {account.job for account in read_accounts(self.files)}
        ended = self.scheduler.find_ended(sorted({launch.name for launch in ran}))
        for launch in ran:
            for number in ended.get(launch.name, ()):
                if self._identifier(launch, number) not in collected:
                    jobs[launch.name] = number
        return jobs

    def identify(self, launches: Sequence[Running], *, say: Say | None = None) -> tuple[Running, ...]:
        """Return `launches` with every identifier filled in, less those that never reached the queue.

        A process that died between its decision to submit and the scheduler's answer left only the job's name. With
        `say` its submission is given the time to reach the queue; without, the queue is looked at once.

        Raises:
            UserError: the scheduler does not answer, or the submission of an earlier command does not end.
        """
        nameless = [launch for launch in launches if not launch.job]
        jobs: dict[str, str] = {}
        if nameless and say is None:
            jobs = self.find(nameless)
        elif nameless and say is not None:
            jobs = self._look(nameless, 0.0, looks=1)
            if any(launch.name not in jobs for launch in nameless):
                say(
                    "a submission of an earlier command was not finished: looking for its jobs before anything is "
                    "submitted"
                )
                jobs |= self._look(nameless, _may_arrive(self.files))
        identified = []
        for launch in launches:
            if launch.job:
                identified.append(launch)
            elif launch.name in jobs:
                identified.append(replace(launch, job=self._identifier(launch, jobs[launch.name])))
        return tuple(identified)

    def own_jobs(self, launches: Sequence[Running]) -> list[str]:
        """Return the jobs of `launches` that are queued or running under the names that the harness gave them.

        Raises:
            UserError: the job of a launch is another one, or the scheduler does not answer.
        """
        names = {launch.name for launch in launches if QUEUE_NAME.fullmatch(launch.name)}
        numbers = self.scheduler.find(sorted(names))
        own_identifiers: set[str] = set()
        others: dict[str, str] = {}
        for launch in launches:
            if launch.name in numbers and launch.job == self._identifier(launch, numbers[launch.name]):
                own_identifiers.add(launch.job)
            else:
                others[launch.job] = launch.name
        states = self.scheduler.poll(sorted(others)) if others else {}
        for job, state in states.items():
            if state.phase in ("queued", "running", "present"):
                raise UserError(
                    f"job {job} is not called '{others[job]}', so that no command of this sweep submitted it: end it "
                    f"with {shell_line(self.scheduler.canceller)} if it is yours, and remove it from running.json"
                )
        return sorted(own_identifiers)

    def _identifier(self, launch: Running, number: str) -> str:
        return self.scheduler.task(number, launch.task) if launch.task >= 0 else number

    def _look(self, launches: Sequence[Running], seconds: float, *, looks: int = _LOOKS) -> dict[str, str]:
        """Look for the jobs of `launches` until all are found; return the found ones by name.

        The others are not there after `seconds` and in `looks` answers. One that was seen once is there, though a later
        answer does not list it.

        Raises:
            SubmissionUnknown: the scheduler does not answer.
        """
        names = {launch.name for launch in launches}
        begin = time.monotonic()
        answers = 0
        jobs: dict[str, str] = {}
        while True:
            try:
                jobs |= self.find(launches)
            except UserError as error:
                if time.monotonic() - begin > PATIENCE_S:
                    listed = ", ".join(sorted(names))
                    text = f"whether {listed} is in the queue is not known, as it does not answer: {error}"
                    raise SubmissionUnknown(f"{text}; the same command looks for it first", lost=True) from error
            else:
                answers += 1
                if names <= jobs.keys() or (answers >= looks and time.monotonic() - begin >= seconds):
                    return jobs
            time.sleep(min(_PAUSE_S, self.scheduler.poll_s))


def _may_arrive(files: SweepFolder) -> float:
    """Return for how many seconds jobs may still arrive, when no submission of an earlier command is left alive.

    The folder's own clock says how old the list of launches is, which is written when jobs are submitted.

    Absence is looked at more than once, however old that list is.

    Raises:
        UserError: such a submission does not end.
    """
    waited = _wait_for_submissions(files)
    os.utime(files.submitting)
    now = files.submitting.stat().st_mtime
    try:
        age = now - files.running.stat().st_mtime
    except FileNotFoundError:
        age = 0.0
    if waited or age < 0:
        return ARRIVAL_S
    return min(ARRIVAL_S, max(ANSWERED_S, COMMAND_LIMIT_S + ARRIVAL_S - age))


def _wait_for_submissions(files: SweepFolder) -> bool:
    """Wait until no submission command is alive, also one whose own command was killed; return whether one was.

    Raises:
        UserError: one does not end.
    """
    begin = time.monotonic()
    handle = os.open(files.submitting, os.O_RDWR | os.O_CREAT, 0o644)
    waited = False
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return waited
            except BlockingIOError:
                waited = True
                if time.monotonic() - begin > PATIENCE_S:
                    raise UserError(
                        f"a submission of an earlier command of sweep '{files.name}' has not ended in "
                        f"{PATIENCE_S:.0f} s: end it, then give the command again"
                    ) from None
                time.sleep(0.1)
    finally:
        os.close(handle)


# Whether a queue that was full takes another job.

_FULL_S = 60.0  # how long a full queue is left alone, unless a job of this sweep ends


class QueueRoom:
    """How many jobs of this sweep a queue takes: any number, until it has said that it is full."""

    def __init__(self) -> None:
        self._jobs = math.inf  # below so many jobs in the queue, or from `_retry_at` on, another one is tried
        self._retry_at = 0.0

    def takes_more(self, jobs: int) -> bool:
        """Return whether another job should be tried, with `jobs` jobs of this sweep in the queue."""
        if jobs >= self._jobs and time.monotonic() < self._retry_at:
            return False
        self._jobs = math.inf
        return True

    def is_full(self, jobs: int, *, certain: bool) -> None:
        """Submit nothing more with `jobs` jobs in the queue: until one ends, or for a while where that is `certain`."""
        self._jobs = jobs
        self._retry_at = time.monotonic() + _FULL_S if certain else math.inf
