"""What earlier commands of a sweep left in the queue or running, and how its launches are started."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.schema.record import RUN_FILE, decode, encode
from harness.schema.sweep import CHECKPOINTS, FAILURES, LOGS, forget_checkpoints
from harness.sweep import store
from harness.sweep.job_options import JobRequest
from harness.sweep.jobs import JOBS, exit_file
from harness.sweep.scheduler import Scheduler, State
from harness.sweep.schedulers import open_scheduler
from harness.sweep.site import Site

SUBMISSION_FILE = "submission.json"  # results/<sweep>/submission.json


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """Scheduler (never ``auto``), site, request, the user's own template and the folder of the originals."""

    scheduler: str = "local"
    site: Site = field(default_factory=Site)
    request: JobRequest = field(default_factory=JobRequest)
    template: str | None = None
    data_dir: str | None = None

    def open(self, *, oversubscribe: bool) -> Scheduler:
        """Return the scheduler.

        Raises:
            UserError: it is not usable here, or does not know what the request asks for.
        """
        return open_scheduler(self.scheduler, oversubscribe=oversubscribe, site=self.site, request=self.request)

    @property
    def data_path(self) -> Path | None:
        """The folder of the original data files."""
        return Path(self.data_dir) if self.data_dir is not None else None


def write_submission(folder: Path, submission: Submission) -> None:
    """Keep how the sweep in `folder` is launched.

    Raises:
        UserError: the folder cannot be written to.
    """
    write_atomic(folder / SUBMISSION_FILE, encode(submission))


def read_submission(folder: Path) -> Submission:
    """Return how the sweep in `folder` was launched last.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = folder / SUBMISSION_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"'{folder}' does not say how it was launched: give the sweep command again") from None
    return decode(content, Submission, path)


_SUBMISSION_S = 5.0


def carry_over(scheduler: Scheduler, folder: Path, say: Callable[[str], None]) -> tuple[store.Running, ...]:
    """Return the launches of the sweep in `folder` that go on in the queue, so that none is submitted twice.

    Launches on this machine are ended instead, and that is said: they would share the cores with what is timed next.

    Raises:
        UserError: they were submitted to another scheduler.
    """
    left = store.read_running(folder)
    if not scheduler.survives_client:
        orphans = scheduler.find([running.name for running in left if running.scheduler == scheduler.name])
        scheduler.cancel(orphans)
        for running in left:
            if running.name in orphans:
                say(f"ended {running.point.folder}, which a killed command of this sweep had left running")
    others = {running.scheduler for running in left} - {scheduler.name}
    if others:
        other = sorted(others)[0]
        raise UserError(
            f"sweep '{folder.name}' has launches under SCHEDULER={other}: wait for them with `harness collect` "
            "or end them with `harness cancel`, then change the scheduler"
        )
    if not scheduler.survives_client:
        store.write_running(folder, ())
        return ()
    known = identify(scheduler, left)
    store.write_running(folder, known)
    return known


def tidy(folder: Path, going: Sequence[store.Running]) -> None:
    """Remove what commands and launches had half written when they were killed, under names with a leading dot.

    Launches that are `going` on may be writing theirs.
    """
    kept = (store.LOCK_FILE, *(f".{running.point.folder}." for running in going))
    at_work = {running.point.folder for running in going}
    unfinished = [path for path in (folder / CHECKPOINTS).glob("*") if path.name not in at_work]
    for path in unfinished:
        if (folder / path.name / RUN_FILE).exists():  # it was killed when its record was written
            forget_checkpoints(folder / path.name)
    places = (*(folder / part for part in (".", JOBS, LOGS, FAILURES)), *unfinished)
    for path in (path for place in places for path in place.glob(".*")):
        if path.name.startswith(kept):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def identify(scheduler: Scheduler, left: tuple[store.Running, ...]) -> tuple[store.Running, ...]:
    """Return `left` with every identifier filled in, less those that never reached the queue.

    A process that died between its decision to submit and the scheduler's answer left only the job's name.
    """
    nameless = [running for running in left if not running.job]
    if nameless and scheduler.survives_client:
        # The submission itself outlives a process that was killed just then: give it the time to reach the queue.
        age = min(abs((datetime.now(UTC) - running.started).total_seconds()) for running in nameless)
        time.sleep(max(0.0, _SUBMISSION_S - age))
    found = scheduler.find([running.name for running in nameless]) if nameless else {}
    known = []
    for running in left:
        if running.job:
            known.append(running)
        elif running.name in found:
            job = found[running.name]
            known.append(replace(running, job=scheduler.task(job, running.task) if running.task >= 0 else job))
    return tuple(known)


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedLaunch:
    """One launch that was submitted. `state` is ``queued``, ``running``, ``ended`` or ``unknown``."""

    state: str
    detail: str


def look(folder: Path, entries: Sequence[store.Running]) -> dict[str, SubmittedLaunch]:
    """Return what is known of submitted launches, by their points' folders; one poll for all of them.

    A scheduler that does not answer is no error here: the launches are ``unknown``, with its sentence.
    """
    if not entries:
        return {}
    try:
        scheduler = read_submission(folder).open(oversubscribe=True)
        known = {running.point.folder: running for running in identify(scheduler, tuple(entries))}
        states = scheduler.poll(sorted({running.job for running in known.values()}))
    except UserError as error:
        return {running.point.folder: SubmittedLaunch(state="unknown", detail=str(error)) for running in entries}
    return {
        running.point.folder: _seen(folder, known[running.point.folder], states, scheduler)
        if running.point.folder in known
        else SubmittedLaunch(state="unknown", detail="it never reached the queue: the same sweep command submits it")
        for running in entries
    }


def _seen(folder: Path, running: store.Running, states: Mapping[str, State], scheduler: Scheduler) -> SubmittedLaunch:
    state = states[running.job]
    job = f"job {running.job}"
    if state.phase == "unknown" and not exit_file(folder, running.point).exists():
        return SubmittedLaunch(state="unknown", detail=f"{job} is not listed by {scheduler.name}")
    if state.phase == "queued":
        return SubmittedLaunch(state="queued", detail=f"{job}: {state.reason or state.word}")
    if state.phase == "running" and not exit_file(folder, running.point).exists():
        if not _begun(folder, running):
            return SubmittedLaunch(state="queued", detail=f"waits for its turn in {job}")
        where = f"{job} on {state.nodes}" if state.nodes else job
        return SubmittedLaunch(state="running", detail=f"{where}: {state.reason}" if state.reason else where)
    if state.phase == "running":
        return SubmittedLaunch(state="ended", detail=f"in {job}, not collected yet")
    return SubmittedLaunch(
        state="ended", detail=f"{job}: {scheduler.explain(state)}; not collected yet: `harness collect`"
    )


def _begun(folder: Path, running: store.Running) -> bool:
    """Tell whether the launch is the one that runs now: in a shared job the others have empty logs or none."""
    script = folder / JOBS / f"{running.point.folder}.sh"
    if script.exists() or running.task >= 0:
        return True
    log = folder / LOGS / f"{running.point.folder}.log"
    return log.exists() and log.stat().st_size > 0
