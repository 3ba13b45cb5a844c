"""Where jobs go: one file per scheduler behind one small interface."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from harness.base.errors import unknown
from harness.schema.layout import Layout
from harness.sweep.job_options import Request
from harness.sweep.site import Partition, Site

# name: module with a class called `Scheduler`; a new one is one file, one line here, one golden script.
SCHEDULERS = {
    "local": "harness.sweep.schedulers.local",
    "slurm": "harness.sweep.schedulers.slurm",
    "pbs": "harness.sweep.schedulers.pbs",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A script to run and the file that takes the output of its first launch.

    `name` is its name in the queue, at most 15 characters. `tasks` is the number of an array's tasks, 0 for a
    job that is none.
    """

    name: str
    script: Path
    log: Path
    tasks: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What the scheduler knows of a job. `phase` is ``queued``, ``running``, ``ended`` or ``unknown``.

    `word` is the scheduler's own name for the state, `reason` its reason, `nodes` where it runs. `exit_code` is
    None before the end, and where the scheduler does not tell. `forced` says that not the script itself came to
    an end: a limit, a lost node, somebody's hand.
    """

    phase: str
    word: str = ""
    reason: str = ""
    nodes: str = ""
    exit_code: int | None = None
    forced: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """The command that starts the ranks of a layout inside a job.

    In a shared allocation it is followed by `node_option` and the names of the nodes, each with `node_suffix`.
    """

    words: tuple[str, ...]
    node_option: str = ""
    node_suffix: str = ""


class Scheduler(Protocol):
    """What a sweep needs of a scheduler. Identifiers outlive the process that submitted."""

    name: str
    template: str
    """File name in ``jobs/templates``."""
    at_once: int
    """How many jobs may be submitted at a time."""
    poll_s: float
    """Seconds between two polls."""
    durable: bool
    """Whether jobs go on when the process that submitted them ends."""
    calls: Mapping[str, int]
    """How often each of the scheduler's commands was called."""

    def check(self) -> str | None:
        """Return what the user should know of this system, if anything; raise a UserError if it does not answer."""

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` can never run here, in one clause, or None."""

    def limit(self) -> Partition | None:
        """Return what a job may ask for at most, None where nothing is known."""

    def launcher(self, layout: Layout) -> Launcher:
        """Return the command that starts the ranks of `layout`, bound to their cores."""

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what the launcher and the MPI library need exported, None for unset."""

    def output(self, folder: Path, job: str) -> Path:
        """Return the file below `folder` that holds what `job` said outside its launches."""

    def submit(self, job: Job) -> tuple[str, ...]:
        """Start or queue `job` and return its identifier, or one for each task of an array."""

    def task(self, job: str, index: int) -> str:
        """Return the identifier of task `index` of the array `job`."""

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the identifiers of those jobs among `names` that are queued or running."""

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the state of every one of `jobs`, at the price of one or two calls in all."""

    def cancel(self, jobs: Iterable[str]) -> None:
        """End `jobs` and all they started."""

    def explain(self, state: State) -> str:
        """Return in one clause what is known of a job that ended without a message of its own."""


def open_scheduler(
    name: str, *, oversubscribe: bool = False, site: Site | None = None, request: Request | None = None
) -> Scheduler:
    """Return the scheduler called `name`, for the jobs that `request` describes, at `site`.

    Raises:
        UserError: there is no such scheduler, or it is not usable here.
    """
    if name not in SCHEDULERS:
        raise unknown("SCHEDULER", name, ("auto", *SCHEDULERS))
    site = site or Site()
    module = importlib.import_module(SCHEDULERS[name])
    return cast(Scheduler, module.Scheduler(oversubscribe=oversubscribe, site=site, request=request or site.request))
