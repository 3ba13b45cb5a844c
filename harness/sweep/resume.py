"""What earlier commands of a sweep left in the queue or running, and what the batch system says of it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import UserError
from harness.schema.sweep import LOGS
from harness.sweep import store
from harness.sweep.jobs import JOBS, exit_file
from harness.sweep.scheduler import Scheduler, State
from harness.sweep.submission import read_submission

_SUBMISSION_S = 5.0


def carry_over(scheduler: Scheduler, folder: Path) -> tuple[store.Running, ...]:
    """Return the launches of the sweep in `folder` that go on in the queue, so that none is submitted twice.

    Launches on this machine are ended instead: they would share the cores with what is timed next.

    Raises:
        UserError: they were submitted to another scheduler.
    """
    left = store.read_running(folder)
    if not scheduler.survives_client:
        scheduler.cancel(scheduler.find([running.name for running in left if running.scheduler == scheduler.name]))
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
    return identify(scheduler, left)


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
class Seen:
    """One launch that was submitted. `state` is ``queued``, ``running``, ``ended`` or ``unknown``."""

    state: str
    detail: str


def look(folder: Path, entries: Sequence[store.Running]) -> dict[str, Seen]:
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
        return {running.point.folder: Seen(state="unknown", detail=str(error)) for running in entries}
    return {
        running.point.folder: _seen(folder, known[running.point.folder], states, scheduler)
        if running.point.folder in known
        else Seen(state="unknown", detail="it never reached the queue: the same sweep command submits it")
        for running in entries
    }


def _seen(folder: Path, running: store.Running, states: Mapping[str, State], scheduler: Scheduler) -> Seen:
    state = states[running.job]
    job = f"job {running.job}"
    if state.phase == "unknown" and not exit_file(folder, running.point).exists():
        return Seen(state="unknown", detail=f"{job} is not listed by {scheduler.name}")
    if state.phase == "queued":
        return Seen(state="queued", detail=f"{job}: {state.reason or state.word}")
    if state.phase == "running" and not exit_file(folder, running.point).exists():
        if not _begun(folder, running):
            return Seen(state="queued", detail=f"waits for its turn in {job}")
        where = f"{job} on {state.nodes}" if state.nodes else job
        return Seen(state="running", detail=f"{where}: {state.reason}" if state.reason else where)
    if state.phase == "running":
        return Seen(state="ended", detail=f"in {job}, not collected yet")
    return Seen(state="ended", detail=f"{job}: {scheduler.explain(state)}; not collected yet: `harness collect`")


def _begun(folder: Path, running: store.Running) -> bool:
    """Tell whether the launch is the one that runs now: in a shared job the others have empty logs or none."""
    script = folder / JOBS / f"{running.point.folder}.sh"
    if script.exists() or running.task >= 0:
        return True
    log = folder / LOGS / f"{running.point.folder}.log"
    return log.exists() and log.stat().st_size > 0
