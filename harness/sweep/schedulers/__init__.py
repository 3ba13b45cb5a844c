"""Where jobs go: every module here is a scheduler, with a class called `Scheduler` and a template of its own.

Also what all have in common.
"""

import abc
import functools
import importlib
import pkgutil
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from harness.base.errors import UserError, unknown
from harness.base.setting_names import setting
from harness.schema.layout import Layout
from harness.schema.record import JobUsage
from harness.sweep.scheduler_answers import CommandRunner, State
from harness.sweep.site import LAUNCHERS, MODES, JobRequest, Partition, Site, size_bytes, walltime, walltime_seconds

if TYPE_CHECKING:
    from harness.sweep.launch_command import LaunchCommand


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteFinding:
    """One statement of a site file and whether it holds."""

    text: str
    good: bool = True


class JobFiles(Protocol):
    """What a scheduler submits: a job of a sweep, or that of the doctor."""

    @property
    def name(self) -> str:
        """Its name in the queue."""

    @property
    def script(self) -> Path:
        """The script that is run."""

    @property
    def log(self) -> Path:
        """The file that takes the output of the script, where it runs on this machine."""

    @property
    def tasks(self) -> int:
        """The number of an array's tasks, 0 for a job that is none."""


class Scheduler(abc.ABC):
    """A scheduler for the jobs that `request` describes, at `site`. Identifiers outlive the process that submitted.

    Raises:
        UserError: the request has what this scheduler does not know.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """What people call it."""
    template: ClassVar[str]
    """File name in ``jobs/templates``."""
    directive: ClassVar[str] = ""
    """How a directive's line begins."""
    submits_by: ClassVar[str] = ""
    """The program that submits jobs; where it is and `ping` answers, this scheduler is there."""
    ping: ClassVar[tuple[str, ...]] = ()
    asks_for_one: ClassVar[tuple[str, ...]] = ()
    """The words of the command that asks for the one job that follows."""
    no_such_job: ClassVar[str] = ""
    """What that command says of a job that the scheduler does not know, as a regular expression."""
    canceller: ClassVar[tuple[str, ...]] = ()
    """The words of the command that ends the jobs which follow."""
    identifier: ClassVar[str] = r"[\w.-]+"
    """What the identifier of a job is, as a regular expression: it is a word of the scheduler's commands."""
    path_characters: ClassVar[str] = r"\w./+@%=-"
    """What a path in a directive may have: other characters split it or are not ASCII."""
    unknown: ClassVar[tuple[str, ...]] = ()
    """The fields of `JobRequest` that it does not know."""
    modes: ClassVar[tuple[str, ...]] = MODES
    launchers: ClassVar[tuple[str, ...]] = LAUNCHERS
    around: ClassVar[str] = ""
    """Of which scheduler this process is in a job, where jobs run in that one."""
    survives_client: ClassVar[bool] = True
    """Whether jobs go on when the process that submitted them ends."""
    poll_s: ClassVar[float] = 2.0
    """Seconds between two polls."""
    forks_ranks: ClassVar[bool] = False
    """Whether ranks of blocks can be forked from a process of the command: it is on their host, and lives as long."""
    rank_python: tuple[str, ...] = ()
    """The words by which ranks of blocks start in the place of Python, none where each starts a Python of its own."""

    def __init__(
        self, *, site: Site | None = None, request: JobRequest | None = None, oversubscribe: bool = False
    ) -> None:
        self.site = site or Site()
        self.request = request or self.site.request
        self.oversubscribe = oversubscribe
        self.max_jobs = self.request.max_jobs
        self.commands = CommandRunner()
        """The scheduler's own commands, counted."""
        for name in self.unknown:
            value = getattr(self.request, name)
            if value != getattr(JobRequest(), name):
                option = setting(name.removesuffix("_s"), value)
                raise UserError(f"{option} is unknown to {setting('scheduler', self.name)}: leave it out")
        if self.request.mode and self.request.mode not in self.modes:
            use = ", ".join(self.modes)
            raise UserError(
                f"{setting('mode', self.request.mode)} is not for {setting('scheduler', self.name)}: use {use}"
            )
        if self.request.launcher not in self.launchers:
            use = ", ".join(self.launchers)
            raise UserError(
                f"{setting('launcher', self.request.launcher)} is not for {setting('scheduler', self.name)}: use {use}"
            )
        self.check_request()

    def check_request(self) -> None:
        """Raise a UserError where settings of the request exclude each other here."""
        return

    @classmethod
    def suitable(cls, request: JobRequest) -> JobRequest:
        """Return a site's `request` without what this scheduler does not know."""
        default = JobRequest()
        unknown = {name: getattr(default, name) for name in cls.unknown}
        if request.launcher not in cls.launchers:
            unknown["launcher"] = default.launcher
        if request.mode not in cls.modes:
            unknown["mode"] = default.mode
        return replace(request, **unknown)

    @classmethod
    def detect(cls) -> str | None:
        """Return by which command this scheduler is there on this machine, None where it is not.

        Raises:
            UserError: it is there and does not answer: a login node is no place to train instead.
        """
        program = shutil.which(cls.submits_by) if cls.submits_by else None
        return program if program and not CommandRunner().ask(cls.ping).code else None

    def check(self) -> str | None:
        """Return what the user should know of this system, if anything; raise a UserError if it does not answer."""
        if self.ping:
            self.commands.run(self.ping)
        return None

    def claim_host(self) -> str | None:
        """Return None when a job may be submitted now, else for whom it has to wait, in one sentence."""
        return None

    def wait_for_cores(self, needed: int, say: Callable[[str], None]) -> None:
        """Return when `needed` cores are nobody else's: a cluster's job gets its own.

        Raises:
            UserError: others stay busy on them for longer than is waited.
        """
        return

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` can never run here, in one clause, or None."""
        return exceeds(layout, self.request, self.limit())

    def limit(self) -> Partition | None:
        """Return what a job may ask for at most, by the site file, else what is there; None where nothing is known."""
        return self.site.limits(self.request.partition) or self._there

    @functools.cached_property
    def _there(self) -> Partition | None:
        try:
            return self.ask_limit()
        except UserError:
            return None  # no such scheduler on this machine: the script is only written

    def ask_limit(self) -> Partition | None:
        """Return what the scheduler says that a job may ask for at most; raise a UserError if it does not answer."""
        return None

    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions or queues that jobs may go to, none where the scheduler does not say."""
        return ()

    def unusable_nodes(self) -> tuple[str, ...]:
        """Return a sentence for each node that jobs cannot have now, such as one that is drained."""
        return ()

    def refuse_line(self, line: str) -> str | None:
        """Return what is wrong with a directive, which this scheduler would ignore or misread, and the fix."""
        return None

    def path(self, path: str) -> str:
        """Return `path` as a directive takes it; raise a UserError if none can."""
        if self.directive and not re.fullmatch(f"[{self.path_characters}]+", path, flags=re.ASCII):
            raise UserError(
                f"{setting('results', path)} has a space or a character that {setting('scheduler', self.name)} "
                "cannot write to: choose another folder"
            )
        return path

    def helpers(self, layout: Layout) -> tuple[str, ...]:
        """Return the programs in ``jobs/templates`` that a job of `layout` needs beside its script."""
        return ()

    def findings(self) -> Iterator[SiteFinding]:
        """Compare the statements of the site file with the live system."""
        if self.site.partition and self.directive:
            yield SiteFinding(text=f"note: partitions are as the file has them, {self.name} is not asked")
        elif self.site.partition:
            yield SiteFinding(good=False, text="partitions are stated, and there is no scheduler here")

    @abc.abstractmethod
    def launcher(self, layout: Layout) -> "LaunchCommand":
        """Return the command that starts the ranks of `layout`, bound to their cores."""

    def node_check(self, layout: Layout) -> tuple[str, ...]:
        """Return the words that run a command on the node whose name follows them, before the launches of `layout`.

        None where a job's nodes cannot be tried one by one.
        """
        return ()

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what the launcher and the MPI library need exported, None for unset."""
        from harness.sweep.launch_command import rank_environment  # a report loads this package, not that

        return rank_environment(self.site, self.name)

    def output(self, folder: Path, job: str) -> Path:
        """Return the file below `folder` that holds what `job` wrote outside its launches."""
        return folder / f"{job}.out"

    @abc.abstractmethod
    def submit(self, job: JobFiles) -> tuple[str, ...]:
        """Start or queue `job` and return its identifier, or one for each task of an array.

        Raises:
            SubmissionRefused: the scheduler will take no such job.
            QueueFull: it takes no more jobs for now.
            SubmissionUnknown: whether it has the job is not known.
        """

    def task(self, job: str, index: int) -> str:
        """Return the identifier of task `index` of the array `job`."""
        return job

    def listed(self, jobs: Sequence[str]) -> Mapping[str, tuple[State, str]]:
        """Return state and name by identifier, at least of `jobs`, or of what is queued or running for none."""
        raise NotImplementedError

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the identifiers of those jobs among `names` that are queued or running."""
        return waiting_or_running(self.listed(()), names)

    def find_ended(self, names: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Return the identifiers of those jobs called one of `names` that have ended, as far as they are remembered."""
        return {}

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the state of every one of `jobs`, at the price of one or two calls in all.

        ``unknown`` is a job that the scheduler does not list: that alone is no proof of its end.
        """
        wanted = list(jobs)
        listed = self.listed(wanted)
        return {job: listed[job][0] if job in listed else State(phase="unknown") for job in wanted}

    def disowns(self, job: str) -> bool:
        """Return whether the scheduler says, in a sentence of its own, that it does not know `job`: then it has ended.

        An answer that does not list the job is no such sentence: it may be cut off, late, or of another server.
        """
        if not self.asks_for_one:
            return False
        try:
            reply = self.commands.ask((*self.asks_for_one, job))
        except UserError:
            return False
        return re.search(self.no_such_job, reply.err) is not None

    def cancel(self, jobs: Iterable[str]) -> None:
        """End `jobs` and all they started; one that has ended already is not an error."""
        for some in at_once(sorted(set(jobs))):
            self.commands.ask((*self.canceller, *some))

    def account(self, jobs: Sequence[str]) -> Mapping[str, JobUsage] | str:
        """Return what those of `jobs` that have ended used, as far as accounting knows; or why there is none."""
        return f"{self.name} is not asked for it"

    @classmethod
    def explain(cls, state: State) -> str:
        """Return in one clause what is known of a job that ended without a message of its own."""
        if state.phase == "unknown":
            return f"{cls.title} no longer knows the job: it ended long ago, or it was submitted elsewhere"
        text = cls.meaning(state.word) + (f" on {state.nodes}" if state.nodes else "")
        return f"{text}: {state.reason}" if state.reason else text

    @classmethod
    def meaning(cls, word: str) -> str:
        """Return what the scheduler's own `word` for the state of an ended job means."""
        return word


def compare_partition(stated: Partition, live: Partition) -> Iterator[SiteFinding]:
    """Compare the limits that a site file states with those of the `live` partition."""
    for field in ("nodes", "cores_per_node", "gpus_per_node", "memory_mb"):
        value = getattr(stated, field)
        most = getattr(live, field)
        if value is not None:
            words = field.replace("_", " ")
            text = f"{stated.name}: {words} {value}, there are {most}"
            yield SiteFinding(good=most is None or value <= most, text=text)
    if stated.walltime is not None:
        text = f"{stated.name}: walltime {stated.walltime}, the scheduler says {live.walltime or 'no limit'}"
        yield SiteFinding(good=stated.walltime == live.walltime, text=text)


def at_once(jobs: Sequence[str], most: int = 500) -> Iterator[Sequence[str]]:
    """Yield `jobs` in parts, each for one call: a command line has an end."""
    return (jobs[begin : begin + most] for begin in range(0, len(jobs), most))


def waiting_or_running(jobs: Mapping[str, tuple[State, str]], names: Iterable[str]) -> dict[str, str]:
    """Return the identifiers of the `jobs` called one of `names` that have not ended: state and name by identifier."""
    wanted = set(names)
    return {name: job for job, (state, name) in jobs.items() if name in wanted and state.phase != "ended"}


def ended_jobs(jobs: Mapping[str, tuple[State, str]], names: Iterable[str]) -> dict[str, list[str]]:
    """Return the identifiers of the `jobs` called one of `names` that have ended: state and name by identifier."""
    wanted = dict.fromkeys(names)
    ended: dict[str, list[str]] = {}
    for job, (state, name) in jobs.items():
        if name in wanted and state.phase == "ended":
            ended.setdefault(name, []).append(job)
    return ended


def exceeds(layout: Layout, request: JobRequest, limit: Partition | None) -> str | None:
    """Return why `layout` exceeds `limit`, in one clause, or None; nothing is known of a `limit` of None."""
    if limit is None:
        return None
    where = f"partition {limit.name}"
    for needed, most, what in (
        (layout.nodes, limit.nodes, "nodes"),
        (layout.ranks_per_node * layout.threads, limit.cores_per_node, "cores a node"),
        (layout.ranks_per_node * layout.gpus_per_rank, limit.gpus_per_node, "GPUs a node"),
        (size_bytes(request.memory) // 2**20, limit.memory_mb, "MB a node"),
    ):
        if most is not None and needed > most:
            return f"needs {needed} {what}, {where} has {most}"
    asked = request.limit_s(layout.nodes)
    fits = request.mode == "turns" and not request.walltime  # its limit is estimated, within the partition's
    if limit.walltime is not None and not fits and asked > walltime_seconds(limit.walltime):
        return f"asks for {setting('walltime', walltime(asked))}, {where} allows {limit.walltime}"
    return None


FALLBACK = "local"


def known_schedulers() -> tuple[str, ...]:
    """Return the names of all schedulers: the modules of this package."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def scheduler_class(name: str) -> type[Scheduler]:
    """Return the class of the scheduler called `name`; raise a UserError if there is no such scheduler."""
    if name not in known_schedulers():
        raise unknown("scheduler", name, ("auto", *known_schedulers()))
    scheduler: type[Scheduler] = importlib.import_module(f"{__name__}.{name}").Scheduler
    return scheduler


def check_identifier(scheduler: str, job: str) -> None:
    """Check that `job`, of a file, can be an identifier of the `scheduler` of that name.

    Raises:
        UserError: it is none, or there is no such scheduler.
    """
    if not re.fullmatch(f"(?!-){scheduler_class(scheduler).identifier}", job, flags=re.ASCII):
        raise UserError(
            f"job {job[:80]!r} is no identifier of {setting('scheduler', scheduler)}: delete the file, or correct it"
        )


def open_scheduler(
    name: str, *, oversubscribe: bool = False, site: Site | None = None, request: JobRequest | None = None
) -> Scheduler:
    """Return the scheduler called `name`, for the jobs that `request` describes, at `site`.

    Raises:
        UserError: there is no such scheduler, or it does not know what the request asks for.
    """
    return scheduler_class(name)(oversubscribe=oversubscribe, site=site, request=request)


def choose_scheduler(name: str, site: Site) -> tuple[str, str]:
    """Return the scheduler for `name`, which may be ``auto``, and one sentence that says why it was chosen.

    The site's own choice comes first, then what answers on this machine; with neither it is this machine.

    Raises:
        UserError: there is no such scheduler, or one is there and does not answer.
    """
    if name != "auto":
        return scheduler_class(name).name, f"scheduler: {name}, as asked{_nodes_here(name)}"
    if site.scheduler != "auto":
        chosen = scheduler_class(site.scheduler).name
        return chosen, f"scheduler: {chosen}, by site {site.name}{_nodes_here(chosen)}"
    for candidate in known_schedulers():
        program = scheduler_class(candidate).detect()
        if program:
            return (
                candidate,
                f"scheduler: {candidate}, found {program} ({setting('scheduler', FALLBACK)} runs here instead)",
            )
    with_queue = [name for name in known_schedulers() if name != FALLBACK and not scheduler_class(name).around]
    others = " or ".join(with_queue)
    return FALLBACK, f"scheduler: {FALLBACK}, no {others} here{_nodes_here(FALLBACK)}"


def _nodes_here(name: str) -> str:
    """Return what stands for a node where that is not plain."""
    return ": a core of this machine stands for a node" if name == FALLBACK else ""


def check_site(site: Site) -> Iterator[SiteFinding]:
    """Yield what the scheduler here says to the statements of `site`; raise a UserError if it does not answer."""
    name, why = choose_scheduler("auto", site)
    yield SiteFinding(text=f"site {site.name}: {why}")
    request = scheduler_class(name).suitable(site.request)
    yield from open_scheduler(name, site=site, request=request).findings()
