"""What a command finds that an earlier one has left: launches in a queue or on this machine, and half-written files."""

from collections.abc import Callable, Sequence

from harness.base.errors import UserError
from harness.base.record_words import shell_line
from harness.base.removal import remove_left
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.job_submission import identify
from harness.sweep.schedulers import Scheduler
from harness.sweep.sweep_files import Running, read_running, write_running


def carry_over(scheduler: Scheduler, files: SweepFolder, say: Callable[[str], None]) -> tuple[Running, ...]:
    """Return the launches of the sweep of `files` that go on in the queue, so that none is submitted twice.

    Launches on this machine are ended instead, and that is said: they would share the cores with what is timed next.

    Raises:
        UserError: they were submitted to another scheduler, or this one does not say whether it has them.
    """
    left = read_running(files)
    if not scheduler.survives_client:
        orphans = scheduler.find([running.name for running in left if running.scheduler == scheduler.name])
        scheduler.cancel(orphans)
        for running in left:
            if running.name in orphans:
                say(f"ended {running.point.folder}, which a killed command of this sweep had left running")
    others = {running.scheduler for running in left} - {scheduler.name}
    if others:
        holder = sorted(others)[0]
        raise UserError(
            f"sweep '{files.name}' has launches under SCHEDULER={holder}: give SCHEDULER={holder} again to wait for "
            f"them, or end them with `{shell_line(['harness', 'cancel', files.name])}`, then change the scheduler"
        )
    if not scheduler.survives_client:
        write_running(files, ())
        return ()
    launches = identify(scheduler, files, left, say=say)
    write_running(files, launches)
    return launches


def tidy(files: SweepFolder, going: Sequence[Running]) -> None:
    """Remove what commands and launches had half written when they were killed.

    Launches that are `going` on may be writing theirs.
    """
    at_work = {running.point.folder for running in going}
    unfinished = [path for path in files.checkpoints.glob("*") if path.name not in at_work]
    for path in unfinished:
        launch = files.launch(path.name)
        if launch.is_recorded:  # it was killed when its record was written
            launch.forget_checkpoints()
    for place in (files.path, files.jobs, files.logs, files.failures, *unfinished):
        remove_left(place, keep=at_work)
