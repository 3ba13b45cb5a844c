"""Take up a sweep whose launches are in a queue: collect what has ended, cancel, run again what failed."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from harness.base.errors import UserError
from harness.base.processes import interruptible
from harness.sweep import store
from harness.sweep.accounts import ask_accounts
from harness.sweep.eta import Pace
from harness.sweep.execute import Approve, run_sweep
from harness.sweep.job_loop import Launches
from harness.sweep.plan import launch_order
from harness.sweep.progress import display
from harness.sweep.scheduler import Scheduler
from harness.sweep.store import is_locked, locked
from harness.sweep.submission import Submission, identify, read_submission


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What came of it: launches taken in, how many of them failed, and how many are not over yet."""

    ended: int
    failed: int
    left: int


def collect(folder: Path, *, wait: bool, console: Console | None = None) -> Collected:
    """Settle the launches of the sweep in `folder` that have ended; with `wait`, all of them.

    Raises:
        UserError: another process works on the sweep (and collects by itself), or the scheduler does not answer.
    """
    with locked(folder), interruptible():
        return _collect(folder, wait, console or Console())


def cancel(folder: Path, *, console: Console | None = None) -> Collected:
    """End the launches of the sweep in `folder` that are queued or running, and keep that they were cancelled.

    A command that waits for them in another terminal settles them itself.

    Raises:
        UserError: nothing of the sweep is queued or running, or the scheduler does not answer.
    """
    left = store.read_running(folder)
    if not left:
        raise UserError(f"nothing of sweep '{folder.name}' is queued or running")
    _, scheduler = _opened(folder)
    if not scheduler.survives_client:
        raise UserError(f"sweep '{folder.name}' runs on this machine: end its command (Ctrl-C) instead")
    jobs = sorted({running.job for running in identify(scheduler, left)})
    scheduler.cancel(jobs)
    if is_locked(folder):
        return Collected(ended=0, failed=0, left=len(left))
    with locked(folder), interruptible():
        return _collect(folder, True, console or Console())


def retry(folder: Path, *, results: Path, approve: Approve, console: Console | None = None) -> Path:
    """Run again every launch that failed, is missing or has invalid times, as the sweep was launched last.

    Raises:
        UserError, RunError: as `run_sweep`.
    """
    asked = store.read_study(folder).sweep
    submission = read_submission(folder)
    return run_sweep(
        asked,
        data_dir=submission.data_path,
        results=results,
        console=console,
        submission=submission,
        approve=approve,
        invalid_too=True,
    )


def _opened(folder: Path) -> tuple[Submission, Scheduler]:
    submission = read_submission(folder)
    return submission, submission.open(oversubscribe=store.read_study(folder).sweep.oversubscribe)


def _collect(folder: Path, wait: bool, console: Console) -> Collected:
    left = store.read_running(folder)
    submission, scheduler = _opened(folder)
    if not left or not scheduler.survives_client:
        ask_accounts(folder, scheduler)
        return Collected(ended=0, failed=0, left=0)
    carried = identify(scheduler, left)
    asked = store.read_study(folder)
    points = launch_order(asked.sweep, asked.sweep.layouts)
    with display(len(carried), console) as shown:
        launches = Launches(
            scheduler,
            submission,
            folder=folder,
            groups=(),
            carried=carried,
            pace=Pace(points, store.survey(folder, points).records.values()),
            shown=shown,
        )
        failed = launches.run() if wait else launches.collect()
    ask_accounts(folder, scheduler)
    return Collected(ended=len(carried) - launches.left, failed=failed, left=launches.left)
