"""The loop of a sweep: submit what is missing, watch what runs, settle what has ended.

What the scheduler refuses is told and kept as a failure, and the other layouts go on.
"""

import re
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from harness.base.errors import UserError
from harness.base.exit_codes import AGAIN
from harness.base.record_words import shell_line
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import Failure, RunRecord, decode_file
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.finished_launches import check_record, finished_launch, set_aside
from harness.sweep.job_cost import note_ended
from harness.sweep.job_plan import Job, without_layouts
from harness.sweep.job_script import write_job
from harness.sweep.job_submission import JobQueue, QueueRoom
from harness.sweep.launch_command import first_error, read_output
from harness.sweep.plan import format_seconds
from harness.sweep.planned_launches import SweepPlan
from harness.sweep.progress import Display, Pace
from harness.sweep.scheduler_answers import NotQueued, QueueFull, State, SubmissionRefused, UnreadableAnswer
from harness.sweep.schedulers import Scheduler
from harness.sweep.sweep_files import Running, file_failure, write_failure, write_running
from harness.sweep.turn_block import SeriesProgress, WhyEnded

# What became of a launch: only a whole record makes it a success, whatever the scheduler says.

_TAIL_LINES = 30
GRACE_S = 30.0  # NFS may show a record half a minute after the job that wrote it has ended (acdirmin)
MISSING_S = 60.0  # how long no answer lists a job before the scheduler is asked for that job alone, again and again
# PBS writes it into the job's output; without job history nothing else tells it.
_TIME_LIMIT = re.compile(r"walltime (?P<used>\d+) exceeded limit (?P<limit>\d+)")


@dataclass(frozen=True, slots=True)
class NotMade:
    """What became of a launch of a block that its job had no time for, or did not need."""


Outcome = RunRecord | Failure | NotMade


@dataclass(kw_only=True)
class Settler:
    """Finds out what became of the launches of a sweep, whose `files` and `scheduler` these are.

    Between calls it remembers when that which may pass was first seen, by the monotonic clock: jobs that no answer
    lists (`missing`; of those asked for alone since then) and that may be requeued (`requeued`), by identifier;
    launches that ended well and have left no record (`unrecorded`), by folder. Of the missing jobs the scheduler
    `disowned` some: they have ended. The `unexplained` may be there still.
    """

    files: SweepFolder
    scheduler: Scheduler
    missing: dict[str, float] = field(default_factory=dict)
    requeued: dict[str, float] = field(default_factory=dict)
    unrecorded: dict[str, float] = field(default_factory=dict)
    disowned: set[str] = field(default_factory=set)
    unexplained: set[str] = field(default_factory=set)

    def settle(self, running: Running, state: State) -> Outcome | None:
        """Return what became of a launch, None while that is open, and keep its failure beside the sweep.

        A launch that left a record has succeeded though its job goes on with others; one that left none has
        failed when its job has ended: as the scheduler says, or the launch's exit code. A job that no answer lists has
        not.
        """
        point = running.point
        exited = self.files.exit_code(point.folder).exists()
        over = self._is_over(running, state, exited=exited)
        if not over and not exited:
            return None
        record = check_record(self.files, point)
        if isinstance(record, RunRecord):
            file_failure(self.files, point)
            return record
        if not over:
            return None
        had_no_time = state.timed_out or self._limit_in_output(running) is not None
        came_to_its_end = exited
        if running.together > 1:
            progress = series_progress(self.files, running)
            had_no_time = had_no_time or progress.why is WhyEnded.LIMIT
            if had_no_time:  # an exit code of a block that is not whole is that of ranks which the limit has ended
                came_to_its_end = exited and running.block < len(progress.blocks)
        else:
            had_no_time = had_no_time and waits_behind_others(self.files, running)
        if not came_to_its_end and (running.extra or had_no_time):
            return NotMade()
        if self.scheduler.request.requeue and not exited and self.files.launch(point.folder).has_checkpoint:
            # Between its end and its place in the queue Slurm calls a job that requeues itself cancelled.
            if _lasts_less(GRACE_S, self.requeued, running.job):
                return None
        ended_well = self._exit_code(point, state) == 0
        if self.scheduler.survives_client and ended_well and _lasts_less(GRACE_S, self.unrecorded, point.folder):
            return None
        return self._keep_failure(running, state)

    def give_up(self, running: Running, state: State) -> Failure:
        """Return that a launch is given up whose job no answer lists, and keep that as its failure."""
        job = running.job
        ends = shell_line([*self.scheduler.canceller, job])
        unlisted = f"{self.scheduler.title} does not list job {job}"
        text = f"given up: {unlisted}; if it is there all the same, `{ends}` ends it"
        return self._keep_failure(running, state, text)

    def _is_over(self, running: Running, state: State, *, exited: bool) -> bool:
        """Return whether a job has ended; one that is not listed has if its launch `exited` or it is disowned."""
        job = running.job
        if state.phase != "unknown":
            self.missing.pop(job, None)
            self.disowned.discard(job)
            self.unexplained.discard(job)
            return state.phase == "ended"
        if exited or not self.scheduler.survives_client or job in self.disowned:
            return True
        if _lasts_less(MISSING_S, self.missing, job):
            return False
        if self.scheduler.disowns(job):
            self.unexplained.discard(job)
            self.disowned.add(job)
            return True
        self.unexplained.add(job)
        self.missing[job] = time.monotonic()
        return False

    def _keep_failure(self, running: Running, state: State, explanation: str = "") -> Failure:
        """Write down why a launch failed, and return it; the scheduler explains it where there is no `explanation`."""
        point = running.point
        log = read_output(self.files.log(point.folder))
        job = read_output(self.scheduler.output(self.files.logs, running.job))
        code = self._exit_code(point, state)
        printed = first_error(log) or first_error(job)
        explanation = explanation or self.scheduler.explain(state)
        late = self._limit_in_output(running)
        if late:
            reason = f"its time limit of {late['limit']} s ended it after {late['used']} s"
        elif state.forced or (state.phase == "unknown" and not self.files.exit_code(point.folder).exists()):
            started = "" if log or state.nodes or not self.scheduler.survives_client else "it had not started; "
            reason = f"{started}{explanation}" + (f"; its output says: {printed}" if printed else "")
        else:
            reason = printed or f"exit code {code} without a valid record, {explanation}"
        if late or state.timed_out:
            reason += "; ask for a longer WALLTIME"
        ended = datetime.now(UTC)
        held_s = (ended - running.started).total_seconds() / running.together
        failure = Failure(
            point=point,
            ended=ended,
            exit_code=code,
            reason=reason,
            tail="\n".join(f"{log}\n{job}".strip("\n").splitlines()[-_TAIL_LINES:]),
            seconds=0.0 if self.scheduler.survives_client else held_s,
        )
        write_failure(self.files, failure)
        return failure

    def _limit_in_output(self, running: Running) -> re.Match[str] | None:
        """Return what the scheduler has written into a job's output where its time limit has ended it."""
        return _TIME_LIMIT.search(read_output(self.scheduler.output(self.files.logs, running.job)))

    def _exit_code(self, point: Point, state: State) -> int:
        try:
            return int(self.files.exit_code(point.folder).read_text())
        except (OSError, ValueError):
            return state.exit_code if state.exit_code is not None else -1


def _lasts_less(seconds: float, first_seen: dict[str, float], name: str) -> bool:
    """Return whether something was first seen less than a number of seconds ago; by default it is now."""
    return time.monotonic() - first_seen.setdefault(name, time.monotonic()) < seconds


def waits_behind_others(files: SweepFolder, running: Running) -> bool:
    """Return whether a launch of a job in which launches follow each other has not begun: its log is empty."""
    name = running.point.folder
    follows_others = running.task < 0 and not files.script(name).exists()
    log = files.log(name)
    return follows_others and not (log.exists() and log.stat().st_size)


def series_progress(files: SweepFolder, running: Running) -> SeriesProgress:
    """Return how far the blocks of a launch's job are: of a job that has not begun, none was made."""
    progress = decode_file(files.blocks_made(running.name), SeriesProgress)
    return progress or SeriesProgress(blocks=(), least=0, most=0, nodes=0, partition="", seconds=0.0)


def _doubts(record: RunRecord) -> str:
    if record.invalid:
        return f", times not valid: {'; '.join(record.invalid)}"
    return ", beside other work" if record.met else ""


_NOTE_S = 0.5  # how often the list of what runs is written: 1,000 submissions are not 1,000 files of 1,000 lines
PATIENCE_S = 600.0  # how long a scheduler may refuse to answer before the wait is given up
UNREADABLE_S = 60.0  # how long it may answer what cannot be read
_SLOWEST_POLL_S = 30.0
_SPOILT = 2  # launches in a row whose times are not valid, before a busy machine is waited for again
_USUAL = {"", "None", "Resources", "Priority", "BeginTime", "Dependency", "Prolog"}


@dataclass(kw_only=True, slots=True)
class LaunchTally:
    """How many launches of a command failed, how many were not tried, and what kept cores busy for too long.

    `not_made` are those of blocks for which the time limit of their job left no time.
    """

    failed: int = 0
    dropped: int = 0
    not_made: int = 0
    busy: str = ""


class Launches:
    """The launches of one command: the jobs of its `plan`, and what that has carried over from the queue.

    With `resubmits` a launch that was stopped with a checkpoint is submitted again, as often as it goes on, and one
    that failed as often as the request says. With `timed` cores of this machine that other processes keep busy are
    waited for, before the first launch and after two in a row without valid times. One that `gives_up` has the user's
    word that jobs which no answer lists are over.
    """

    def __init__(
        self,
        plan: SweepPlan,
        progress: Display,
        *,
        resubmits: bool = False,
        timed: bool = False,
        gives_up: bool = False,
    ) -> None:
        self._wanted = plan.wanted
        self._scheduler = plan.wanted.scheduler
        self._files = plan.wanted.files
        self._pace = Pace(plan.wanted.points, plan.survey.records.values())
        self._progress = progress
        self._resubmits = resubmits
        self._timed = timed
        self._gives_up = gives_up
        self._tally = LaunchTally()
        self._waiting = list(plan.jobs)
        self._running = {running.point.folder: running for running in plan.carried}
        self._states: dict[str, State] = {running.job: State(phase="queued") for running in self._running.values()}
        self._last_reasons: dict[Layout, str] = {}
        self._settler = Settler(files=self._files, scheduler=self._scheduler)
        self._queue = JobQueue(files=self._files, scheduler=self._scheduler)
        self._submitting_since: float | None = None  # a job that does not reach the queue
        self._silent_since: float | None = None  # a scheduler that does not answer
        self._unexplained_since: float | None = None  # nothing but jobs that no answer lists
        self._said: set[str] = set()
        self._noted = 0.0
        self._over: list[Running] = []
        self._tried: Counter[str] = Counter()
        self._begun: dict[str, float] = {}
        self._spoilt = _SPOILT
        self._open: set[str] = set()  # folders of launches whose submission has begun and has no outcome yet
        self._submitted = False
        self._refused: SubmissionRefused | None = None
        self._room = QueueRoom()

    def run(self) -> LaunchTally:
        """Launch all, in order, and return what became of them. An interruption ends jobs only if they are children.

        Raises:
            UserError: the scheduler took none of them, its answers stay away or cannot be read, or it is not known of
                any job that is left whether it is there.
        """
        pause = self._scheduler.poll_s
        slowest = _SLOWEST_POLL_S if self._scheduler.survives_client else pause
        try:
            while self._waiting or self._running:
                self._submit()
                time.sleep(pause)
                changed = self._poll()
                self._end_if_all_unexplained()
                # A queue that does not move is asked ever more seldom.
                pause = self._scheduler.poll_s if changed else min(pause * 1.2, slowest)
        finally:
            if not self._scheduler.survives_client:
                self._scheduler.cancel([running.job or running.name for running in self._running.values()])
                self._running.clear()
            self._note(now=True)
            if self._scheduler.commands.calls:
                called = ", ".join(f"{name} {times}" for name, times in sorted(self._scheduler.commands.calls.items()))
                self._progress.say(f"scheduler commands: {called}")
        if self._refused is not None and not self._submitted:
            raise self._refused
        return self._tally

    def take_in(self) -> None:
        """Settle what has ended; submit nothing. What no answer lists is asked for by itself, once."""
        self._poll()
        while any(self._states[job].phase == "unknown" for job in self._jobs() - self._settler.unexplained):
            time.sleep(self._scheduler.poll_s)
            self._poll()
        self._note(now=True)

    def _end_if_all_unexplained(self) -> None:
        """Raise a UserError when nothing has been known for long of any job that is left; their launches stay noted."""
        jobs = self._jobs()
        if not jobs or not jobs <= self._settler.unexplained:
            self._unexplained_since = None
            return
        if self._unexplained_since is None:
            self._unexplained_since = time.monotonic()
        if time.monotonic() - self._unexplained_since > PATIENCE_S:
            raise UserError("; ".join(self._of_unexplained(job) for job in sorted(jobs)))

    def _of_unexplained(self, job: str) -> str:
        """Return what is said of a job that no answer lists."""
        given_up = shell_line(["harness", "cancel", self._files.name])
        return (
            f"job {job}: {self._scheduler.title} does not list it, and nothing says that it has ended, so that its "
            f"launches are not submitted again: `{given_up}` gives them up"
        )

    @property
    def going(self) -> tuple[Running, ...]:
        """The launches that are submitted and not settled."""
        return tuple(self._running.values())

    def _submit(self) -> None:
        """Submit as many jobs as may be in the queue; what is intended is on disk before the first one is."""
        batch = self._batch()
        waits = self._scheduler.claim_host() if batch else None
        if waits is not None:
            self._say(waits)
        if not batch or waits is not None or self._disturbed():
            return
        for job in batch:
            self._prepare(job)
        self._note(now=True)
        try:
            for job in batch:
                if job in self._waiting and not self._submit_one(job):
                    return
                self._note(now=False)
        finally:
            # What was not submitted is no launch; where that is not known its name finds the job.
            self._running = {
                folder: running for folder, running in self._running.items() if running.job or folder in self._open
            }
            self._note(now=True)

    def _batch(self) -> list[Job]:
        """Return the jobs that may be submitted now: as many as the queue has room for."""
        queued = len(self._jobs())
        if not self._room.takes_more(queued):
            return []
        batch: list[Job] = []
        for job in self._waiting:
            if queued >= self._scheduler.max_jobs:
                break
            batch.append(job)
            queued += job.queued
        return batch

    def _jobs(self) -> set[str]:
        """Return the jobs of this sweep that are in the queue or running."""
        return {running.job for running in self._running.values() if running.job}

    def _disturbed(self) -> bool:
        """Wait for cores that others keep busy, where that is due; return whether nothing more is tried, as they are.

        Launches in turns are made all the same: other work does not make them invalid.
        """
        if self._spoilt < _SPOILT or not self._timed:
            return False
        self._spoilt = 0
        try:
            self._scheduler.wait_for_cores(max(job.layout.cores for job in self._waiting), self._progress.say)
        except UserError as error:
            if any(job.in_turns for job in self._waiting):
                self._progress.say(
                    "not waiting any longer: rounds in which other processes have a core are left out of the ratios"
                )
                return False
            left = sum(len(job.points) for job in self._waiting)
            self._tally.busy = str(error)
            self._waiting = []
            self._tally.dropped += left
            self._progress.dropped(left)
            return True
        return False

    def _prepare(self, job: Job) -> None:
        """Write the files of a job, and that it is about to be submitted: if this process dies, its name finds it."""
        extra = set(job.extra)
        block_of = job.block_of_launches() if job.in_turns else {}
        for index, point in enumerate(job.launches):
            set_aside(self._files, point.folder)
            self._begun[point.folder] = time.monotonic()
            self._running[point.folder] = Running(
                point=point,
                job="",
                started=datetime.now(UTC),
                scheduler=self._scheduler.name,
                name=job.name,
                task=index if job.tasks else -1,
                together=len({peer.layout for peer in job.points}) if job.in_turns else 1,
                block=block_of.get(point, 0),
                extra=point in extra,
            )
        write_job(job, self._scheduler, self._wanted.submission)

    def _submit_one(self, job: Job) -> bool:
        """Submit one job that waits; return False when nothing more is to be submitted for now."""
        if not self._scheduler.survives_client:
            self._progress.started(self._pace.name(*job.points))
        launches = [self._running[point.folder] for point in job.launches]
        folders = {launch.point.folder for launch in launches}
        self._open |= folders
        try:
            identifiers = self._queue.submit(job, launches, self._progress.say)
        except QueueFull as error:
            self._open -= folders
            return self._leave_alone(job, error)
        except SubmissionRefused as error:
            self._open -= folders
            self._refuse(job, error)
            return True
        except NotQueued as error:
            self._open -= folders
            if self._submitting_since is None:
                self._submitting_since = time.monotonic()
            if time.monotonic() - self._submitting_since > PATIENCE_S:
                raise error
            self._say(f"submitting again: {error}")
            return False
        self._open -= folders
        self._submitting_since = None
        self._submitted = True
        self._waiting.remove(job)
        for index, launch in enumerate(launches):
            name = identifiers[index if job.tasks else 0]
            self._running[launch.point.folder] = replace(launch, job=name)
            self._states[name] = State(phase="queued" if self._scheduler.survives_client else "running")
        return True

    def _leave_alone(self, job: Job, error: QueueFull) -> bool:
        """Let a full queue be until a job of this sweep has ended, or for a while; return whether others are tried.

        Raises:
            QueueFull: none of its jobs is this sweep's.
        """
        queued = len(self._jobs())
        if not queued and error.certain:
            raise error
        if not queued:  # nothing of this sweep can be what is too much
            self._refuse(job, SubmissionRefused(error.text))
            return True
        self._say(f"the queue takes no more for now: {error.text}")
        self._room.is_full(queued, certain=error.certain)
        return False

    def _refuse(self, job: Job, error: SubmissionRefused) -> None:
        """Tell what the scheduler refuses, keep it as a failure, and let the other layouts go on."""
        reason = f"{self._scheduler.title or self._scheduler.name} refuses it: {error}"
        self._refused = self._refused or error
        points = self._take_out({job.layout})
        for point in points:
            failure = Failure(point=point, ended=datetime.now(UTC), exit_code=-1, reason=reason, tail="", seconds=0.0)
            write_failure(self._files, failure)
        self._tally.failed += len(points)
        self._progress.dropped(len(points))
        self._say(f"not submitted, {len(points)} of the launches, {job.layout}: {reason}")

    def _poll(self) -> bool:
        """Ask for the states of all jobs, settle what has ended and return whether anything changed."""
        jobs = {running.job for running in self._running.values()}
        try:
            states = dict(self._scheduler.poll(sorted(jobs)))
        except UserError as error:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
            patience_s = UNREADABLE_S if isinstance(error, UnreadableAnswer) else PATIENCE_S
            if time.monotonic() - self._silent_since > patience_s:
                raise
            self._say(f"no answer, asking again: {error}")
            return False
        self._silent_since = None
        changed = any(self._states.get(job) != state for job, state in states.items())
        before = self._states
        self._states = dict(states)
        for running in tuple(self._running.values()):
            state = states[running.job]
            old = before.get(running.job)
            self._tell(running, old, state)
            outcome = self._settler.settle(running, state)
            if outcome is None and self._gives_up and running.job in self._settler.unexplained:
                outcome = self._settler.give_up(running, state)
            if outcome is not None:
                self._settled(running, outcome, state)
                changed = True
        for job in sorted(self._jobs() & self._settler.unexplained):
            self._say(self._of_unexplained(job))
        if changed:
            self._note(now=False)
        return changed

    def _tell(self, running: Running, old: State | None, state: State) -> None:
        if not self._scheduler.survives_client:
            return
        if state.phase == "running" and (old is None or old.phase != "running"):
            if running.together > 1:
                self._say(f"job {running.job} has started{f' on {state.nodes}' if state.nodes else ''}")
            else:
                self._progress.started(self._pace.name(running.point))
        if state.phase != "ended" and state.reason not in _USUAL:
            self._say(f"job {running.job} {'waits' if state.phase == 'queued' else 'runs'}: {state.reason}")

    def _settled(self, running: Running, outcome: Outcome, state: State) -> None:
        del self._running[running.point.folder]
        is_made = not isinstance(outcome, NotMade)
        if self._scheduler.survives_client and (is_made or not running.extra):
            self._over.append(running)
        if not any(sibling.job == running.job for sibling in self._running.values()):
            self._states.pop(running.job, None)
            self._tell_blocks(running, state)
        if isinstance(outcome, NotMade):
            self._count_not_made(running)
            return
        if running.extra:
            self._progress.added(1)
        text = self._finished(running, outcome) if isinstance(outcome, RunRecord) else self._failed(outcome, state)
        waiting = [member for job in self._waiting for member in job.points]
        left = self._pace.left([*waiting, *(launch.point for launch in self._running.values())])
        name = self._pace.name(running.point)
        self._progress.ended(name, text, None if self._scheduler.survives_client else left)

    def _count_not_made(self, running: Running) -> None:
        """Count a launch that is asked for and of whose block nothing stands."""
        if not running.extra:
            self._tally.not_made += 1
            self._progress.dropped(1)

    def _tell_blocks(self, running: Running, state: State) -> None:
        """Say how many blocks a job that has ended has made, what they cost, and why it made no more."""
        if running.together == 1 or not self._scheduler.survives_client:
            return
        progress = series_progress(self._files, running)
        count = len(progress.blocks)
        blocks = "1 block" if count == 1 else f"{count} blocks"
        if count < progress.least:
            blocks = f"{count} of {progress.least} blocks"
        if progress.why is not None:
            hours = progress.nodes * progress.seconds / 3600
            end = f" in {format_seconds(progress.seconds)}, {hours:.2f} node-hours; {progress.why.value}"
        else:
            end = f"; {self._scheduler.explain(state)}"
        self._progress.say(f"job {running.job}: {blocks}{end}")

    def _finished(self, running: Running, record: RunRecord) -> str:
        """Count a launch that left its record, and return how fast it was, with what makes that doubtful."""
        point = running.point
        self._last_reasons.pop(point.layout, None)
        self._spoilt = self._spoilt + 1 if record.invalid else 0
        wall_s = record.wall_seconds
        begun = self._begun.get(point.folder)  # by the monotonic clock: the other one may be set meanwhile
        if begun is not None and not self._scheduler.survives_client:
            wall_s = time.monotonic() - begun
        launch = finished_launch(record)
        self._pace.take(launch, wall_s / running.together)
        return f"{self._pace.speed(launch)}{_doubts(record)}; took {format_seconds(wall_s)}"

    def _failed(self, failure: Failure, state: State) -> str:
        """Submit a launch again that failed, or count it, and return what is said of it.

        One that was stopped with a checkpoint goes on from there.
        """
        point = failure.point
        launch = self._files.launch(point.folder)
        is_stopped = failure.exit_code == AGAIN and not state.forced and launch.has_checkpoint
        if self._resubmits and (is_stopped or self._tried[point.folder] < self._scheduler.request.retries):
            if not is_stopped:
                self._tried[point.folder] += 1
            self._waiting.append(Job(folder=self._wanted.folder, mode="jobs", points=(point,)))
            return f"{failure.reason}; submitted again"
        self._tally.failed += 1
        text = failure.reason if is_stopped else f"FAILED: {failure.reason}"
        self._give_up(point.layout, text)
        return text

    def _give_up(self, layout: Layout, reason: str) -> None:
        """Drop what waits of a layout whose last two launches failed in the same way: the others would fail so too."""
        if self._last_reasons.get(layout) != reason:
            self._last_reasons[layout] = reason
            return
        dropped = len(self._take_out({layout}))
        if dropped:
            self._tally.dropped += dropped
            self._progress.dropped(dropped)
            self._say(f"{layout}: failed twice in the same way, so {dropped} more are not tried")

    def _take_out(self, layouts: Collection[Layout]) -> list[Point]:
        """Take the launches of `layouts` out of what waits, and return them."""
        self._waiting, taken = without_layouts(self._waiting, layouts)
        return taken

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._progress.say(text)

    def _note(self, *, now: bool) -> None:
        if now or time.monotonic() - self._noted > _NOTE_S:
            note_ended(self._files, self._over)
            self._over.clear()
            write_running(self._files, tuple(self._running.values()))
            self._noted = time.monotonic()
