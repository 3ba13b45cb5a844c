"""Where jobs go: one file per scheduler behind one small interface."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from harness.errors import unknown
from harness.spec.layout import Layout

# name: module with a class called `Scheduler`; a new one is one file, one line here, one golden script.
SCHEDULERS = {"local": "harness.sweep.schedulers.local"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A script to run and the file that takes its standard output and error."""

    script: Path
    log: Path


class Scheduler(Protocol):
    """What a sweep needs of a scheduler. Identifiers outlive the process that submitted."""

    template: str
    """File name in ``jobs/templates``."""
    at_once: int
    """How many jobs may be submitted at a time."""

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` can never run here, in one clause, or None."""

    def launcher(self, layout: Layout) -> tuple[str, ...]:
        """Return the command that starts the ranks of `layout`, bound to their cores."""

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what the launcher and the MPI library need exported, None for unset."""

    def submit(self, job: Job) -> str:
        """Start or queue `job` and return its identifier."""

    def poll(self, jobs: Iterable[str]) -> Mapping[str, int]:
        """Return the exit code of those of `jobs` that have ended."""

    def cancel(self, job: str) -> None:
        """End `job` and all it started; return when it is gone."""

    def explain(self, exit_code: int) -> str:
        """Return in one clause what is known of a job that ended without a message of its own."""


def open_scheduler(name: str, *, oversubscribe: bool = False) -> Scheduler:
    """Return the scheduler called `name`.

    Raises:
        UserError: there is no such scheduler, or it is not usable here.
    """
    if name not in SCHEDULERS:
        raise unknown("SCHEDULER", name, SCHEDULERS)
    module = importlib.import_module(SCHEDULERS[name])
    return cast(Scheduler, module.Scheduler(oversubscribe=oversubscribe))
