"""What the batch system says of a sweep's launches, asked from any terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.spec.study import LOGS
from harness.sweep import study
from harness.sweep.carry import identify
from harness.sweep.jobs import JOBS, exit_file
from harness.sweep.launching import read_launching
from harness.sweep.schedulers import Scheduler, State


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One launch that was submitted. `state` is ``queued``, ``running``, ``ended`` or ``unknown``."""

    state: str
    detail: str


def look(folder: Path, entries: Sequence[study.Running]) -> dict[str, Seen]:
    """Return what is known of submitted launches, by their points' folders; one poll for all of them.

    A scheduler that does not answer is no error here: the launches are ``unknown``, with its sentence.
    """
    if not entries:
        return {}
    try:
        scheduler = read_launching(folder).open(oversubscribe=True)
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


def _seen(folder: Path, running: study.Running, states: Mapping[str, State], scheduler: Scheduler) -> Seen:
    state = states[running.job]
    job = f"job {running.job}"
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


def _begun(folder: Path, running: study.Running) -> bool:
    """Tell whether the launch is the one that runs now: in a shared job the others have empty logs or none."""
    script = folder / JOBS / f"{running.point.folder}.sh"
    if script.exists() or running.task >= 0:
        return True
    log = folder / LOGS / f"{running.point.folder}.log"
    return log.exists() and log.stat().st_size > 0
