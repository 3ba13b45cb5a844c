"""What earlier commands of a sweep left in the queue or running, and how its launches are started."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.schema.option import options
from harness.schema.presets import Words, harness_command
from harness.schema.record import RUN_FILE, decode, encode
from harness.schema.sweep import CHECKPOINTS, FAILURES, LOGS, SUBMISSION_FILE, Sweep, forget_checkpoints
from harness.sweep.job_options import JobRequest
from harness.sweep.job_script import JOBS
from harness.sweep.scheduler import Scheduler
from harness.sweep.schedulers import open_scheduler
from harness.sweep.site import Site
from harness.sweep.sweep_folder import LOCK_FILE, Running, read_running, write_running


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """Scheduler (never ``auto``), site, request, the user's own template and the folder of the originals.

    `site_file` is the site's name or file where the user named one.
    """

    scheduler: str = "local"
    site: Site = field(default_factory=Site)
    request: JobRequest = field(default_factory=JobRequest)
    template: str | None = None
    data_dir: str | None = None
    site_file: str | None = None

    def open(self, *, oversubscribe: bool) -> Scheduler:
        """Return the scheduler.

        Raises:
            UserError: it is not usable here, or does not know what the request asks for.
        """
        return open_scheduler(self.scheduler, oversubscribe=oversubscribe, site=self.site, request=self.request)


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


def next_command(folder: Path, sweep: Sweep) -> str:
    """Return the ``harness sweep`` lines that go on with `sweep`, launched as it was last; empty if that is not known.

    They take in what has ended, and launch again what failed, is missing or has no valid times.
    """
    try:
        submission = read_submission(folder)
    except UserError:
        return ""
    words: Words = [("SCHEDULER", submission.scheduler)]
    words += [("SITE", submission.site_file)] if submission.site_file else []
    shape = submission.request.shape
    if submission.scheduler == "local":
        words += [("no-turns", True)] if shape == "jobs" and not submission.template else []
    elif shape == "array":
        words.append((shape, True))
    elif shape in ("nested", "block"):
        words += [("nested", True), ("turns" if shape == "block" else "no-turns", True)]
    for one, asked in options(JobRequest):
        value = getattr(submission.request, one.name)
        if value == getattr(submission.site.request, one.name):
            continue
        off = value is False and asked.opposite
        name = asked.opposite if off else asked.name or one.name
        words += [(name, True if off else part) for part in (value if isinstance(value, tuple) else (value,))]
    words += [("TEMPLATE", submission.template)] if submission.template else []
    words += [("DATA_DIR", submission.data_dir)] if submission.data_dir else []
    words += [("RESULTS", folder.parent)] if folder.parent != Path("results") else []
    return harness_command(sweep, words)


_SUBMISSION_S = 5.0


def carry_over(scheduler: Scheduler, folder: Path, say: Callable[[str], None]) -> tuple[Running, ...]:
    """Return the launches of the sweep in `folder` that go on in the queue, so that none is submitted twice.

    Launches on this machine are ended instead, and that is said: they would share the cores with what is timed next.

    Raises:
        UserError: they were submitted to another scheduler.
    """
    left = read_running(folder)
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
            f"sweep '{folder.name}' has launches under SCHEDULER={other}: give SCHEDULER={other} again to wait for "
            f"them, or end them with `harness cancel {folder.name}`, then change the scheduler"
        )
    if not scheduler.survives_client:
        write_running(folder, ())
        return ()
    known = identify(scheduler, left)
    write_running(folder, known)
    return known


def tidy(folder: Path, going: Sequence[Running]) -> None:
    """Remove what commands and launches had half written when they were killed, under names with a leading dot.

    Launches that are `going` on may be writing theirs.
    """
    kept = (LOCK_FILE, *(f".{running.point.folder}." for running in going))
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


def identify(scheduler: Scheduler, left: tuple[Running, ...]) -> tuple[Running, ...]:
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
