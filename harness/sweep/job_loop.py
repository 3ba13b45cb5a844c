"""The loop of a sweep: submit what is missing, watch what runs, settle what has ended.

What the scheduler refuses is told and kept as a failure, and the other layouts go on.
"""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import UserError
from harness.base.exit_codes import AGAIN
from harness.base.record_words import shell_line
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import Failure, RunRecord, decode_file
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.finished_launches import check_record, finished_launch, set_aside
from harness.sweep.job_cost import note_ended
from harness.sweep.job_plan import Job, JobPlan, without_layouts
from harness.sweep.job_script import write_job
from harness.sweep.job_submission import QueueRoom, submit_job
from harness.sweep.launch_command import first_error, read_output
from harness.sweep.plan import format_seconds
from harness.sweep.progress import Display, Pace
from harness.sweep.scheduler_answers import NotQueued, QueueFull, State, SubmissionRefused, UnreadableAnswer
from harness.sweep.schedulers import Scheduler
from harness.sweep.submission_settings import Submission
from harness.sweep.sweep_files import Running, file_failure, write_failure, write_running
from harness.sweep.turn_block import SeriesProgress, WhyEnded

# What became of a launch: only a whole record makes it a success, whatever the scheduler says.

_TAIL_LINES = 30
GRACE_S = 30.0  # NFS may show a record half a minute after the job that wrote it has ended (acdirmin)
MISSING_S = 60.0  # how long no answer lists a job before the scheduler is asked for that job alone, again and again
# PBS writes it into the job's output; without job history nothing else tells it.
_TIME_LIMIT = re.compile(r"walltime (?P<used>\d+) exceeded limit (?P<limit>\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOutcome:
    """The end of a launch: its record with the `doubts` about it, or None and the `reason` why.

    `again` says that it was stopped with a checkpoint: submitted again it goes on from there. One that is `not_made`
    is of a block that its job had no time for, or did not need.
    """

    record: RunRecord | None = None
    doubts: str = ""
    reason: str = ""
    again: bool = False
    not_made: bool = False

    @property
    def text(self) -> str:
        """What is said of it."""
        if self.record is not None:
            return self.doubts
        return self.reason if self.again else f"FAILED: {self.reason}"


@dataclass(kw_only=True)
class FirstSeen:
    """When that which may pass was first seen, by the monotonic clock; `settle` remembers it between its calls.

    Jobs that no answer lists (`missing`; of those asked for alone since then) and that may be requeued (`requeued`), by
    identifier; launches that ended well and have left no record (`unrecorded`), by folder. Of the missing jobs the
    scheduler `disowned` some: they have ended. The `unexplained` may be there still.
    """

    missing: dict[str, float] = field(default_factory=dict)
    requeued: dict[str, float] = field(default_factory=dict)
    unrecorded: dict[str, float] = field(default_factory=dict)
    disowned: set[str] = field(default_factory=set)
    unexplained: set[str] = field(default_factory=set)


def settle(
    files: SweepFolder, running: Running, state: State, scheduler: Scheduler, seen: FirstSeen
) -> LaunchOutcome | None:
    """Return what became of a launch, None while that is open, and keep its failure beside the sweep.

    A launch that left a record has succeeded though its job goes on with others; one that left none has
    failed when its job has ended: as the scheduler says, or the launch's exit code. A job that no answer lists has not.
    """
    point = running.point
    launch = files.launch(point.folder)
    exited = files.exit_code(point.folder).exists()
    over = _is_over(running, state, scheduler, seen, exited=exited)
    if not over and not exited:
        return None
    record = check_record(files, point)
    if isinstance(record, RunRecord):
        file_failure(files, point)
        return LaunchOutcome(record=record, doubts=_doubts(record))
    if not over:
        return None
    had_no_time = state.timed_out or _limit_in_output(files, running, scheduler) is not None
    came_to_its_end = exited
    if running.together > 1:
        progress = _series_progress(files, running)
        had_no_time = had_no_time or progress.why is WhyEnded.LIMIT
        if had_no_time:  # an exit code of a block that is not whole is that of ranks which the limit has ended
            came_to_its_end = exited and running.block < len(progress.blocks)
    else:
        had_no_time = had_no_time and waits_behind_others(files, running)
    if not came_to_its_end and (running.extra or had_no_time):
        return LaunchOutcome(not_made=True)
    if scheduler.request.requeue and not exited and launch.has_checkpoint:
        # Between its end and its place in the queue Slurm calls a job that requeues itself cancelled.
        if _lasts_less(GRACE_S, seen.requeued, running.job):
            return None
    code = _exit_code(files, point, state)
    if scheduler.survives_client and code == 0 and _lasts_less(GRACE_S, seen.unrecorded, point.folder):
        return None
    reason = _keep_failure(files, running, state, scheduler)
    again = code == AGAIN and not state.forced and launch.has_checkpoint
    return LaunchOutcome(reason=reason, again=again)


def _is_over(running: Running, state: State, scheduler: Scheduler, seen: FirstSeen, *, exited: bool) -> bool:
    """Return whether a job has ended; one that is not listed has if its launch `exited` or the scheduler disowns it."""
    job = running.job
    if state.phase != "unknown":
        seen.missing.pop(job, None)
        seen.disowned.discard(job)
        seen.unexplained.discard(job)
        return state.phase == "ended"
    if exited or not scheduler.survives_client or job in seen.disowned:
        return True
    if _lasts_less(MISSING_S, seen.missing, job):
        return False
    if scheduler.disowns(job):
        seen.unexplained.discard(job)
        seen.disowned.add(job)
        return True
    seen.unexplained.add(job)
    seen.missing[job] = time.monotonic()
    return False


def give_up(files: SweepFolder, running: Running, state: State, scheduler: Scheduler) -> LaunchOutcome:
    """Return that a launch is given up whose job no answer lists, and keep that as its failure beside the sweep."""
    ends = shell_line([*scheduler.canceller, running.job])
    text = f"given up: {scheduler.title} does not list job {running.job}; if it is there all the same, `{ends}` ends it"
    return LaunchOutcome(reason=_keep_failure(files, running, state, scheduler, text))


def _lasts_less(seconds: float, first_seen: dict[str, float], name: str) -> bool:
    """Return whether something was first seen less than a number of seconds ago; by default it is now."""
    return time.monotonic() - first_seen.setdefault(name, time.monotonic()) < seconds


def _limit_in_output(files: SweepFolder, running: Running, scheduler: Scheduler) -> re.Match[str] | None:
    """Return what the scheduler has written into a job's output where its time limit has ended it."""
    return _TIME_LIMIT.search(read_output(scheduler.output(files.logs, running.job)))


def waits_behind_others(files: SweepFolder, running: Running) -> bool:
    """Return whether a launch of a job in which launches follow each other has not begun: its log is empty."""
    name = running.point.folder
    follows_others = running.task < 0 and not files.script(name).exists()
    log = files.log(name)
    return follows_others and not (log.exists() and log.stat().st_size)


def _series_progress(files: SweepFolder, running: Running) -> SeriesProgress:
    """Return how far the blocks of a launch's job are: of a job that has not begun, none was made."""
    progress = decode_file(files.blocks_made(running.name), SeriesProgress)
    return progress or SeriesProgress(blocks=(), least=0, most=0, nodes=0, partition="", seconds=0.0)


def _doubts(record: RunRecord) -> str:
    if record.invalid:
        return f", times not valid: {'; '.join(record.invalid)}"
    return ", beside other work" if record.met else ""


def _keep_failure(
    files: SweepFolder, running: Running, state: State, scheduler: Scheduler, explanation: str = ""
) -> str:
    """Write down why a launch failed, and return it; the scheduler explains it where there is no `explanation`."""
    point = running.point
    log = read_output(files.log(point.folder))
    job = read_output(scheduler.output(files.logs, running.job))
    code = _exit_code(files, point, state)
    printed = first_error(log) or first_error(job)
    explanation = explanation or scheduler.explain(state)
    late = _limit_in_output(files, running, scheduler)
    if late:
        reason = f"its time limit of {late['limit']} s ended it after {late['used']} s"
    elif state.forced or (state.phase == "unknown" and not files.exit_code(point.folder).exists()):
        started = "" if log or state.nodes or not scheduler.survives_client else "it had not started; "
        reason = f"{started}{explanation}" + (f"; its output says: {printed}" if printed else "")
    else:
        reason = printed or f"exit code {code} without a valid record, {explanation}"
    if late or state.timed_out:
        reason += "; ask for a longer WALLTIME"
    ended = datetime.now(UTC)
    tail = "\n".join(f"{log}\n{job}".strip("\n").splitlines()[-_TAIL_LINES:])
    held_s = 0.0 if scheduler.survives_client else (ended - running.started).total_seconds() / running.together
    write_failure(files, Failure(point=point, ended=ended, exit_code=code, reason=reason, tail=tail, seconds=held_s))
    return reason


def _exit_code(files: SweepFolder, point: Point, state: State) -> int:
    try:
        return int(files.exit_code(point.folder).read_text())
    except (OSError, ValueError):
        return state.exit_code if state.exit_code is not None else -1


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


@dataclass(kw_only=True)
class Launches:
    """The launches of one command: the jobs of `plans`, and what is `carried` over from the queue.

    With `resubmits` a launch that was stopped with a checkpoint is submitted again, as often as it goes on, and one
    that failed as often as the request says. With `timed` cores of this machine that other processes keep busy are
    waited for, before the first launch and after two in a row without valid times. One that `gives_up` has the user's
    word that jobs which no answer lists are over.
    """

    scheduler: Scheduler
    submission: Submission
    folder: Path
    pace: Pace
    progress: Display
    plans: Sequence[JobPlan] = ()
    carried: Iterable[Running] = ()
    resubmits: bool = False
    timed: bool = False
    gives_up: bool = False

    def __post_init__(self) -> None:
        self._tally = LaunchTally()
        self._waiting = list(self.plans)
        self._running = {running.point.folder: running for running in self.carried}
        self._states: dict[str, State] = {running.job: State(phase="queued") for running in self._running.values()}
        self._last_reasons: dict[Layout, str] = {}
        self._seen = FirstSeen()
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
        pause = self.scheduler.poll_s
        slowest = _SLOWEST_POLL_S if self.scheduler.survives_client else pause
        try:
            while self._waiting or self._running:
                self._submit()
                time.sleep(pause)
                changed = self._poll()
                self._end_if_all_unexplained()
                # A queue that does not move is asked ever more seldom.
                pause = self.scheduler.poll_s if changed else min(pause * 1.2, slowest)
        finally:
            if not self.scheduler.survives_client:
                self.scheduler.cancel([running.job or running.name for running in self._running.values()])
                self._running.clear()
            self._note(now=True)
            if self.scheduler.commands.calls:
                called = ", ".join(f"{name} {times}" for name, times in sorted(self.scheduler.commands.calls.items()))
                self.progress.say(f"scheduler commands: {called}")
        if self._refused is not None and not self._submitted:
            raise self._refused
        return self._tally

    def take_in(self) -> None:
        """Settle what has ended; submit nothing. What no answer lists is asked for by itself, once."""
        self._poll()
        while any(self._states[job].phase == "unknown" for job in self._jobs() - self._seen.unexplained):
            time.sleep(self.scheduler.poll_s)
            self._poll()
        self._note(now=True)

    def _end_if_all_unexplained(self) -> None:
        """Raise a UserError when nothing has been known for long of any job that is left; their launches stay noted."""
        jobs = self._jobs()
        if not jobs or not jobs <= self._seen.unexplained:
            self._unexplained_since = None
            return
        if self._unexplained_since is None:
            self._unexplained_since = time.monotonic()
        if time.monotonic() - self._unexplained_since > PATIENCE_S:
            raise UserError("; ".join(self._of_unexplained(job) for job in sorted(jobs)))

    def _of_unexplained(self, job: str) -> str:
        """Return what is said of a job that no answer lists."""
        given_up = shell_line(["harness", "cancel", self.folder.name])
        return (
            f"job {job}: {self.scheduler.title} does not list it, and nothing says that it has ended, so that its "
            f"launches are not submitted again: `{given_up}` gives them up"
        )

    @property
    def _files(self) -> SweepFolder:
        return SweepFolder(self.folder)

    @property
    def going(self) -> tuple[Running, ...]:
        """The launches that are submitted and not settled."""
        return tuple(self._running.values())

    def _submit(self) -> None:
        """Submit as many jobs as may be in the queue; what is intended is on disk before the first one is."""
        batch = self._batch()
        waits = self.scheduler.claim_host() if batch else None
        if waits is not None:
            self._say(waits)
        if not batch or waits is not None or self._disturbed():
            return
        jobs = [Job(plan=plan, files=SweepFolder(self.folder.resolve())) for plan in batch]
        for job in jobs:
            self._prepare(job)
        self._note(now=True)
        try:
            for job in jobs:
                if job.plan in self._waiting and not self._submit_one(job):
                    return
                self._note(now=False)
        finally:
            # What was not submitted is no launch; where that is not known its name finds the job.
            self._running = {
                folder: running for folder, running in self._running.items() if running.job or folder in self._open
            }
            self._note(now=True)

    def _batch(self) -> list[JobPlan]:
        """Return the jobs that may be submitted now: as many as the queue has room for."""
        jobs = len(self._jobs())
        if not self._room.takes_more(jobs):
            return []
        batch: list[JobPlan] = []
        for plan in self._waiting:
            if jobs >= self.scheduler.max_jobs:
                break
            batch.append(plan)
            jobs += plan.jobs
        return batch

    def _jobs(self) -> set[str]:
        """Return the jobs of this sweep that are in the queue or running."""
        return {running.job for running in self._running.values() if running.job}

    def _disturbed(self) -> bool:
        """Wait for cores that others keep busy, where that is due; return whether nothing more is tried, as they are.

        Launches in turns are made all the same: other work does not make them invalid.
        """
        if self._spoilt < _SPOILT or not self.timed:
            return False
        self._spoilt = 0
        try:
            self.scheduler.wait_for_cores(max(plan.layout.cores for plan in self._waiting), self.progress.say)
        except UserError as error:
            if any(plan.in_turns for plan in self._waiting):
                self.progress.say(
                    "not waiting any longer: rounds in which other processes have a core are left out of the ratios"
                )
                return False
            left = sum(len(plan.points) for plan in self._waiting)
            self._tally.busy = str(error)
            self._waiting = []
            self._tally.dropped += left
            self.progress.dropped(left)
            return True
        return False

    def _prepare(self, job: Job) -> None:
        """Write the files of a job, and that it is about to be submitted: if this process dies, its name finds it."""
        plan = job.plan
        extra = set(plan.extra)
        block_of = plan.block_of_launches() if plan.in_turns else {}
        for index, point in enumerate(plan.launches):
            set_aside(self._files, point.folder)
            self._begun[point.folder] = time.monotonic()
            self._running[point.folder] = Running(
                point=point,
                job="",
                started=datetime.now(UTC),
                scheduler=self.scheduler.name,
                name=job.name,
                task=index if job.tasks else -1,
                together=len({peer.layout for peer in plan.points}) if plan.in_turns else 1,
                block=block_of.get(point, 0),
                extra=point in extra,
            )
        data_dir = None if self.submission.data_dir is None else Path(self.submission.data_dir)
        write_job(job, self.scheduler, data_dir=data_dir, template=self.submission.template)

    def _submit_one(self, job: Job) -> bool:
        """Submit one job that waits; return False when nothing more is to be submitted for now."""
        plan = job.plan
        if not self.scheduler.survives_client:
            self.progress.started(self.pace.name(*plan.points))
        launches = [self._running[point.folder] for point in plan.launches]
        folders = {launch.point.folder for launch in launches}
        self._open |= folders
        try:
            identifiers = submit_job(self.scheduler, job, launches, self.progress.say)
        except QueueFull as error:
            self._open -= folders
            return self._leave_alone(plan, error)
        except SubmissionRefused as error:
            self._open -= folders
            self._refuse(plan, error)
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
        self._waiting.remove(plan)
        for index, launch in enumerate(launches):
            name = identifiers[index if job.tasks else 0]
            self._running[launch.point.folder] = replace(launch, job=name)
            self._states[name] = State(phase="queued" if self.scheduler.survives_client else "running")
        return True

    def _leave_alone(self, plan: JobPlan, error: QueueFull) -> bool:
        """Let a full queue be until a job of this sweep has ended, or for a while; return whether others are tried.

        Raises:
            QueueFull: none of its jobs is this sweep's.
        """
        jobs = len(self._jobs())
        if not jobs and error.certain:
            raise error
        if not jobs:  # nothing of this sweep can be what is too much
            self._refuse(plan, SubmissionRefused(error.text))
            return True
        self._say(f"the queue takes no more for now: {error.text}")
        self._room.is_full(jobs, certain=error.certain)
        return False

    def _refuse(self, plan: JobPlan, error: SubmissionRefused) -> None:
        """Tell what the scheduler refuses, keep it as a failure, and let the other layouts go on."""
        reason = f"{self.scheduler.title or self.scheduler.name} refuses it: {error}"
        self._refused = self._refused or error
        points = self._take_out({plan.layout})
        for point in points:
            failure = Failure(point=point, ended=datetime.now(UTC), exit_code=-1, reason=reason, tail="", seconds=0.0)
            write_failure(self._files, failure)
        self._tally.failed += len(points)
        self.progress.dropped(len(points))
        self._say(f"not submitted, {len(points)} of the launches, {plan.layout}: {reason}")

    def _poll(self) -> bool:
        """Ask for the states of all jobs, settle what has ended and return whether anything changed."""
        jobs = {running.job for running in self._running.values()}
        try:
            states = dict(self.scheduler.poll(sorted(jobs)))
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
            outcome = settle(self._files, running, state, self.scheduler, self._seen)
            if outcome is None and self.gives_up and running.job in self._seen.unexplained:
                outcome = give_up(self._files, running, state, self.scheduler)
            if outcome is not None:
                self._settled(running, outcome, state)
                changed = True
        for job in sorted(self._jobs() & self._seen.unexplained):
            self._say(self._of_unexplained(job))
        if changed:
            self._note(now=False)
        return changed

    def _tell(self, running: Running, old: State | None, state: State) -> None:
        if not self.scheduler.survives_client:
            return
        if state.phase == "running" and (old is None or old.phase != "running"):
            if running.together > 1:
                self._say(f"job {running.job} has started{f' on {state.nodes}' if state.nodes else ''}")
            else:
                self.progress.started(self.pace.name(running.point))
        if state.phase != "ended" and state.reason not in _USUAL:
            self._say(f"job {running.job} {'waits' if state.phase == 'queued' else 'runs'}: {state.reason}")

    def _settled(self, running: Running, outcome: LaunchOutcome, state: State) -> None:
        del self._running[running.point.folder]
        if self.scheduler.survives_client and not (outcome.not_made and running.extra):
            self._over.append(running)
        if not any(sibling.job == running.job for sibling in self._running.values()):
            self._states.pop(running.job, None)
            self._tell_blocks(running, state)
        if outcome.not_made:
            self._count_not_made(running)
            return
        if running.extra:
            self.progress.added(1)
        point = running.point
        text = outcome.text
        if outcome.record is None and self._goes_on(point, outcome):
            text = f"{outcome.reason}; submitted again"
        elif outcome.record is None:
            self._tally.failed += 1
            self._give_up(point.layout, outcome)
        else:
            text = self._finished(running, outcome.record, text)
        waiting = [member for plan in self._waiting for member in plan.points]
        left = self.pace.left([*waiting, *(launch.point for launch in self._running.values())])
        self.progress.ended(self.pace.name(point), text, None if self.scheduler.survives_client else left)

    def _count_not_made(self, running: Running) -> None:
        """Count a launch that is asked for and of whose block nothing stands."""
        if not running.extra:
            self._tally.not_made += 1
            self.progress.dropped(1)

    def _tell_blocks(self, running: Running, state: State) -> None:
        """Say how many blocks a job that has ended has made, what they cost, and why it made no more."""
        if running.together == 1 or not self.scheduler.survives_client:
            return
        progress = _series_progress(self._files, running)
        count = len(progress.blocks)
        blocks = "1 block" if count == 1 else f"{count} blocks"
        if count < progress.least:
            blocks = f"{count} of {progress.least} blocks"
        if progress.why is not None:
            hours = progress.nodes * progress.seconds / 3600
            end = f" in {format_seconds(progress.seconds)}, {hours:.2f} node-hours; {progress.why.value}"
        else:
            end = f"; {self.scheduler.explain(state)}"
        self.progress.say(f"job {running.job}: {blocks}{end}")

    def _finished(self, running: Running, record: RunRecord, doubts: str) -> str:
        """Count a launch that left its record, and return how fast it was with its `doubts`."""
        point = running.point
        self._last_reasons.pop(point.layout, None)
        self._spoilt = self._spoilt + 1 if record.invalid else 0
        wall_s = record.wall_seconds
        begun = self._begun.get(point.folder)  # by the monotonic clock: the other one may be set meanwhile
        if begun is not None and not self.scheduler.survives_client:
            wall_s = time.monotonic() - begun
        launch = finished_launch(record)
        self.pace.take(launch, wall_s / running.together)
        return f"{self.pace.speed(launch)}{doubts}; took {format_seconds(wall_s)}"

    def _goes_on(self, point: Point, outcome: LaunchOutcome) -> bool:
        """Put a launch that is to be submitted again at the end of what waits; return whether it is."""
        if not self.resubmits:
            return False
        if not outcome.again:
            if self._tried[point.folder] >= self.scheduler.request.retries:
                return False
            self._tried[point.folder] += 1
        self._waiting.append(JobPlan(mode="jobs", points=(point,)))
        return True

    def _give_up(self, layout: Layout, outcome: LaunchOutcome) -> None:
        """Drop what waits of a layout whose last two launches failed in the same way: the others would fail so too."""
        if self._last_reasons.get(layout) != outcome.text:
            self._last_reasons[layout] = outcome.text
            return
        dropped = len(self._take_out({layout}))
        if dropped:
            self._tally.dropped += dropped
            self.progress.dropped(dropped)
            self._say(f"{layout}: failed twice in the same way, so {dropped} more are not tried")

    def _take_out(self, layouts: Collection[Layout]) -> list[Point]:
        """Take the launches of `layouts` out of what waits, and return them."""
        self._waiting, taken = without_layouts(self._waiting, layouts)
        return taken

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.progress.say(text)

    def _note(self, *, now: bool) -> None:
        if now or time.monotonic() - self._noted > _NOTE_S:
            note_ended(self._files, self._over)
            self._over.clear()
            write_running(self._files, tuple(self._running.values()))
            self._noted = time.monotonic()
