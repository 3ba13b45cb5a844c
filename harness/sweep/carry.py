"""What an earlier command of the same sweep left in the queue, or running."""

from dataclasses import replace
from pathlib import Path

from harness.errors import UserError
from harness.sweep import study
from harness.sweep.schedulers import Scheduler


def carry_over(scheduler: Scheduler, folder: Path) -> tuple[study.Running, ...]:
    """Return the launches of the sweep in `folder` that go on in the queue, so that none is submitted twice.

    Launches on this machine are ended instead: they would share the cores with what is timed next.

    Raises:
        UserError: they were submitted to another scheduler.
    """
    left = study.read_running(folder)
    if not scheduler.durable:
        scheduler.cancel([running.job for running in left if running.scheduler == scheduler.name])
    others = {running.scheduler for running in left} - {scheduler.name}
    if others:
        other = sorted(others)[0]
        raise UserError(
            f"sweep '{folder.name}' has launches under SCHEDULER={other}: wait for them with `harness collect` "
            "or end them with `harness cancel`, then change the scheduler"
        )
    if not scheduler.durable:
        study.write_running(folder, ())
        return ()
    return identify(scheduler, left)


def identify(scheduler: Scheduler, left: tuple[study.Running, ...]) -> tuple[study.Running, ...]:
    """Return `left` with every identifier filled in, less those that never reached the queue.

    A process that died between its decision to submit and the scheduler's answer left only the job's name.
    """
    nameless = [running.name for running in left if not running.job]
    found = scheduler.find(nameless) if nameless else {}
    known = []
    for running in left:
        if running.job:
            known.append(running)
        elif running.name in found:
            job = found[running.name]
            known.append(replace(running, job=scheduler.task(job, running.task) if running.task >= 0 else job))
    return tuple(known)
