"""How far a sweep is, read from its folder and from its scheduler by any process, with the command that goes on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import UserError
from harness.base.record_words import shell_line
from harness.schema.point import Point
from harness.schema.sweep import Skipped
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.finished_launches import Survey, other_code, survey
from harness.sweep.job_loop import series_progress, waits_behind_others
from harness.sweep.job_submission import JobQueue
from harness.sweep.plan import launch_order, time_left
from harness.sweep.scheduler_answers import State
from harness.sweep.schedulers import Scheduler
from harness.sweep.submission_settings import next_command, read_submission
from harness.sweep.sweep_files import Running, read_running, read_study
from harness.sweep.sweep_lock import is_locked


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchStatus:
    """One launch. `state` is ``done``, ``invalid``, ``queued``, ``running``, ``ended``, ``unknown``, ``failed`` or
    ``missing``.

    ``ended`` is over and not collected yet. `detail` says why; `tail` has the last lines of a failed launch.
    """

    point: Point
    state: str
    detail: str = ""
    tail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """A job in turns that has not been taken in. `state` and `detail` as of a launch.

    It has made so many `blocks` of `least` to `most` blocks; `least` is 0 where it has not begun.
    """

    job: str
    state: str
    detail: str
    blocks: int
    least: int
    most: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """One sweep. `active` tells whether a process works on it now; `left` is in seconds, None when unknown.

    `other_code` counts the launches in its folder that ran a different version of the code than its last command asked
    for, `to_launch` those without a record that counts. `judged_together`: some trained in turns or are of a script, so
    that whether their times count shows beside the others only. `blocks` are the turn blocks that were made. `jobs` are
    those in turns of a batch system. `command` goes on with the sweep, one ``harness sweep`` line or several; empty
    where that is not known.
    """

    name: str
    active: bool
    entries: tuple[LaunchStatus, ...]
    skipped: tuple[Skipped, ...]
    left: float | None
    other_code: int = 0
    to_launch: int = 0
    judged_together: bool = False
    blocks: int = 0
    jobs: tuple[JobStatus, ...] = ()
    command: str = ""

    @property
    def at_work(self) -> bool:
        """Whether a command works on the sweep, or launches of it are queued or running."""
        in_queue = any(job.state in ("queued", "running") for job in self.jobs)
        return self.active or in_queue or bool(self.count("queued", "running"))

    def count(self, *states: str) -> int:
        """Return the number of launches in any of `states`."""
        return sum(entry.state in states for entry in self.entries)

    def with_invalid(self, reasons: Mapping[str, Sequence[str]]) -> "Status":
        """Return the status with the launches invalid that have `reasons`, by folder, why their times must not be used.

        A record says what its launch saw; some reasons show beside the sweep's other launches only.
        """
        entries = []
        for entry in self.entries:
            doubts = reasons.get(entry.point.folder, ())
            if entry.state == "done" and doubts:
                entry = replace(entry, state="invalid", detail="; ".join(doubts))
            entries.append(entry)
        return replace(self, entries=tuple(entries))


def read_status(folder: Path) -> Status:
    """Read the state of the sweep in `folder`; raise a UserError if the study file is missing or damaged."""
    files = SweepFolder(folder)
    study = read_study(files)
    active = is_locked(files)
    skipped = {skipped.layout for skipped in study.skipped}
    points = launch_order(study.sweep, [layout for layout in study.sweep.layouts if layout not in skipped])
    result = survey(files, points)
    submitted = read_running(files)
    here = [running for running in submitted if active and running.scheduler == "local"]
    started = {running.point.folder: LaunchStatus(point=running.point, state="running") for running in here}
    in_queue, jobs = _ask_scheduler(files, [running for running in submitted if running.scheduler != "local"])
    started |= in_queue
    entries = tuple(_entry(point, result, started) for point in points)
    return Status(
        name=folder.name,
        active=active,
        entries=entries,
        skipped=study.skipped,
        left=_seconds_left(entries, result, here),
        other_code=other_code(files, result, study.sweep.code),
        to_launch=len(result.missing(points)),
        judged_together=any(record.block or record.point.workload.script for record in result.records.values()),
        blocks=sum(1 for _ in files.rounds.glob("*.parquet")),
        jobs=jobs,
        command=next_command(folder, study.sweep),
    )


def _seconds_left(entries: Sequence[LaunchStatus], result: Survey, here: Sequence[Running]) -> float | None:
    """Return the seconds that what waits will take, and the rest of what runs `here`; None where nothing does."""
    waits = [entry.point for entry in entries if entry.state in ("running", "missing", "failed")]
    left = time_left(waits, result.durations()) if here else None
    if left is None:
        return None
    now = datetime.now(UTC)
    return max(0.0, left - sum(max(0.0, (now - running.started).total_seconds()) for running in here))


def _entry(point: Point, result: Survey, started: Mapping[str, LaunchStatus]) -> LaunchStatus:
    record = result.records.get(point.folder)
    if record is not None:
        state = "invalid" if record.invalid else "done"
        return LaunchStatus(point=point, state=state, detail="; ".join(record.invalid))
    if point.folder in started:
        return started[point.folder]
    if point.folder in result.failures:
        failure = result.failures[point.folder]
        return LaunchStatus(point=point, state="failed", detail=failure.reason, tail=failure.tail)
    return LaunchStatus(point=point, state="missing", detail=result.damaged.get(point.folder, ""))


def _ask_scheduler(
    files: SweepFolder, submitted: Sequence[Running]
) -> tuple[dict[str, LaunchStatus], tuple[JobStatus, ...]]:
    """Return what is known of submitted launches, by their points' folders, and of jobs in turns; one poll for all.

    A scheduler that does not answer is not an error here: the launches are ``unknown``, with its sentence.
    """
    if not submitted:
        return {}, ()
    try:
        scheduler = read_submission(files).open(oversubscribe=True)
        identified_launches = JobQueue(scheduler=scheduler, files=files).identify(submitted)
        identified = {running.point.folder: running for running in identified_launches}
        states = scheduler.poll(sorted({running.job for running in identified.values()}))
    except UserError as error:
        silent = {
            running.point.folder: LaunchStatus(point=running.point, state="unknown", detail=str(error))
            for running in submitted
        }
        return silent, ()
    queue = _Queue(files=files, scheduler=scheduler, states=states)
    entries: dict[str, LaunchStatus] = {}
    for launch in submitted:
        running = identified.get(launch.point.folder)
        state, detail = "unknown", "it never reached the queue: the same sweep command submits it"
        if running is not None:
            state, detail = queue.of_launch(running)
        entries[launch.point.folder] = LaunchStatus(point=launch.point, state=state, detail=detail)
    return entries, tuple(queue.jobs_in_turns(tuple(identified.values())))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Queue:
    """The jobs of the sweep of `files` in the queue of a scheduler, by their `states` there."""

    files: SweepFolder
    scheduler: Scheduler
    states: Mapping[str, State]

    def jobs_in_turns(self, launches: Sequence[Running]) -> Iterator[JobStatus]:
        """Yield how far each job is of those `launches` that train in turns."""
        first_of = {running.job: running for running in reversed(launches) if running.together > 1}
        for job, running in first_of.items():
            state, detail = self.of_job(running)
            progress = series_progress(self.files, running)
            yield JobStatus(
                job=job,
                state=state,
                detail=detail,
                blocks=len(progress.blocks),
                least=progress.least,
                most=progress.most,
            )

    def of_launch(self, running: Running) -> tuple[str, str]:
        """Return the state and the detail of a launch by the state of its job."""
        phase = self.states[running.job].phase
        exited = self.files.exit_code(running.point.folder).exists()
        if exited and phase in ("running", "unknown"):
            return "ended", f"in job {running.job}, not collected yet"
        if phase == "running" and self._waits_in_job(running):
            return "queued", f"waits for its {'block' if running.together > 1 else 'turn'} in job {running.job}"
        return self.of_job(running)

    def of_job(self, running: Running) -> tuple[str, str]:
        """Return the state and the detail of the job of a launch."""
        job = f"job {running.job}"
        state = self.states[running.job]
        title = self.scheduler.title
        if state.phase == "unknown":
            given_up = shell_line(["harness", "cancel", self.files.name])
            asked = "the same sweep command asks whether it has ended"
            return "unknown", f"{job}: {title} does not list it; {asked}, `{given_up}` gives it up"
        if state.phase == "queued":
            starts = f", expected to start {state.starts}" if state.starts else ""
            return "queued", f"{job}: {state.reason or state.word}{starts}"
        if state.phase == "present":
            return "queued", f"{job}: {title} calls its state {state.word or 'nothing'}, which is not known here"
        if state.phase == "running":
            where = f"{job} on {state.nodes}" if state.nodes else job
            return "running", f"{where}: {state.reason}" if state.reason else where
        return "ended", f"{job}: {self.scheduler.explain(state)}; not collected yet"

    def _waits_in_job(self, running: Running) -> bool:
        """Return whether a launch waits in a job of several that runs."""
        if running.together > 1:
            return running.block > len(series_progress(self.files, running).blocks)
        return waits_behind_others(self.files, running)
