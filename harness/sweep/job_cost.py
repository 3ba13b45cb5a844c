"""What the jobs of a sweep may cost, by what earlier launches took, and what they have used."""

import logging
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.setting_names import setting
from harness.comm.harness_variables import mpi_choice
from harness.comm.mpi_library import mpi_title
from harness.schema.layout import Layout
from harness.schema.record import Account, RunRecord, decode_file, encode, read_accounts, read_point
from harness.schema.sweep_folder import LaunchFolder, SweepFolder
from harness.sweep.job_plan import Job
from harness.sweep.plan import time_left
from harness.sweep.schedulers import Scheduler
from harness.sweep.site import JobRequest, Partition, Site, walltime, walltime_seconds
from harness.sweep.sweep_files import Running
from harness.sweep.turn_block import SeriesProgress


@dataclass(frozen=True, kw_only=True, slots=True)
class PastLaunches:
    """The median `seconds` that a launch of each layout took, by so many `launches`; of a block each has its share."""

    seconds: Mapping[Layout, float] = field(default_factory=dict)
    launches: int = 0

    def total(self, layouts: Iterable[Layout]) -> float | None:
        """Return the seconds of one launch of each of `layouts`, None where none of any layout is known.

        One that is not known takes as long as the longest of those that are, and longer in proportion where it has
        fewer cores than all of them.
        """
        if not self.seconds:
            return None
        longest = max(self.seconds.values())
        fewest = min(layout.cores for layout in self.seconds)
        total = 0.0
        for layout in layouts:
            unknown = longest * max(1.0, fewest / layout.cores)
            total += self.seconds.get(layout, unknown)
        return total


def past_launches(files: SweepFolder, partition: str) -> PastLaunches:
    """Return what launches of the sweep of `files` took: in blocks in `partition`, else one by one.

    Of several blocks of a job the first does not count: it may have compiled what the others found. Nor does one in
    which a launch failed: it may have ended early.
    """
    shares = list(_shares_of_blocks(files, partition)) or list(_launches_alone(files))
    by_layout: dict[Layout, list[float]] = {}
    for layout, seconds in shares:
        by_layout.setdefault(layout, []).append(seconds)
    medians = {layout: median(values) for layout, values in by_layout.items()}
    return PastLaunches(seconds=medians, launches=len(shares))


def _shares_of_blocks(files: SweepFolder, partition: str) -> Iterator[tuple[Layout, float]]:
    """Yield the layout of each launch of a block that came to its end, and its share of the block's seconds."""
    for path in files.all_blocks_made():
        progress = decode_file(path, SeriesProgress)
        if progress is None or progress.partition != partition:
            continue
        whole = [block for block in progress.blocks if not block.code]
        counted = whole[1:] or whole
        for block in counted:
            for layout in _layouts(files, block.launches):
                yield layout, block.seconds / len(block.launches)


def _layouts(files: SweepFolder, launches: Sequence[str]) -> Iterator[Layout]:
    for launch in launches:
        try:
            yield read_point(files.point(launch)).layout
        except UserError:  # removed, or of another version
            continue


def _launches_alone(files: SweepFolder) -> Iterator[tuple[Layout, float]]:
    """Yield layout and seconds of each launch that trained in no block, whatever version of the code it ran."""
    for folder in files.records():
        try:
            record = decode_file(LaunchFolder(folder).record, RunRecord)
        except UserError:
            continue
        if record is not None and not record.block:
            yield record.point.layout, record.wall_seconds


# Time limits of jobs, and what these cost.

FIRST_LIMIT_S = 1800.0
"""Seconds of a job in turns, and of each repeat of launches that follow each other, before anything is known."""
_BLOCKS = 3  # that the time limit of a job in turns is for
_RESERVE = 1.5  # times what they took
_START_S = 120.0  # of a job, before its first block and after its last
_SHOWN = 3  # reasons of nodes
_NOTHING_KNOWN = PastLaunches()


def time_limit(job: Job, request: JobRequest, limit: Partition | None, past: PastLaunches = _NOTHING_KNOWN) -> float:
    """Return the seconds of a job's time limit, within what the partition allows.

    Where none is asked for, a job of several launches has what these take by `past` ones, half as much again, and two
    minutes to start and to end: in turns for three blocks at least. Where that is not enough, the rest is missing and
    runs with the next command.
    """
    if request.walltime or not job.is_shared:
        return request.limit_s(job.layout.nodes)
    estimated_s = _estimated_s(job, past)
    if estimated_s is None:
        total = FIRST_LIMIT_S * (1 if job.in_turns else job.repeats)
    else:
        if job.in_turns:
            estimated_s *= max(1.0, _BLOCKS / len(job.needed_blocks))
        total = 60.0 * math.ceil((_RESERVE * estimated_s + _START_S) / 60)
    if limit is not None and limit.walltime:
        total = min(total, walltime_seconds(limit.walltime))
    return total


def _estimated_s(job: Job, past: PastLaunches) -> float | None:
    """Return the seconds of the launches that are asked for of a job, one that is in several blocks in each of them."""
    return past.total([point.layout for point in job.points])


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHours:
    """Node-hours: `expected` by the launches that have finished (None before the first), `limit` by time limits.

    `enough` is a limit that the longest launch so far keeps three times over, if that is far below what is asked for.
    `estimated_limit_s` is the longest time limit that jobs have by an estimate, 0 where none has; `all_of` names the
    partition, or the job around, that allows no more than that.
    """

    expected: float | None
    limit: float
    jobs: int
    finished: int
    enough: str = ""
    estimated_limit_s: float = 0.0
    all_of: str = ""

    def __str__(self) -> str:
        plural = "" if self.jobs == 1 else "s"
        limit = f"at most {self.limit:.2f} node-hours by the time limits of {self.jobs} job{plural}"
        if self.all_of:
            limit += f" ({walltime(self.estimated_limit_s)}, all that partition {self.all_of} allows)"
        elif self.estimated_limit_s:
            basis = f"by {self.finished} earlier launches" if self.finished else "as no launch of it is known here yet"
            limit += f" ({walltime(self.estimated_limit_s)}, {basis}: {setting('walltime')} says otherwise)"
        if self.expected is None:
            return f"cost: {limit}"
        if self.enough:
            limit += f"; judging by these, {setting('walltime', self.enough)} is enough, and starts sooner"
        return f"cost: about {self.expected:.2f} node-hours by {self.finished} finished launches, {limit}"

    @property
    def likely(self) -> float:
        """The node-hours to ask a confirmation for: what is expected, else the limit."""
        return self.limit if self.expected is None else self.expected


def estimate(
    jobs: Sequence[Job],
    request: JobRequest,
    partition: Partition | None,
    durations: Mapping[Layout, Sequence[float]],
    past: PastLaunches = _NOTHING_KNOWN,
) -> NodeHours:
    """Return the cost of `jobs`.

    `durations` holds the seconds of finished launches by layout; `past` are those that jobs of several are judged by.
    """
    limit = 0.0
    expected = 0.0
    estimated_limit_s = 0.0
    for job in jobs:
        limit_s = time_limit(job, request, partition, past)
        limit += job.layout.nodes * limit_s * job.queued / 3600
        if job.is_shared:
            expected += job.layout.nodes * (_estimated_s(job, past) or 0.0) / 3600
            estimated_limit_s = max(estimated_limit_s, 0.0 if request.walltime else limit_s)
            continue
        for point in job.points:
            expected += point.layout.nodes * (time_left([point], durations) or 0.0) / 3600
    one_by_one = not any(job.is_shared for job in jobs)
    finished = sum(len(values) for values in durations.values()) if one_by_one else past.launches
    enough_s = 60 * math.ceil(3 * max(map(max, durations.values()), default=0.0) / 60)
    most_s = walltime_seconds(partition.walltime) if partition is not None and partition.walltime else math.inf
    shorter = finished and one_by_one and all(2 * enough_s < request.limit_s(job.layout.nodes) for job in jobs)
    return NodeHours(
        expected=expected if finished else None,
        limit=limit,
        jobs=sum(job.queued for job in jobs),
        finished=finished,
        enough=walltime(enough_s) if shorter else "",
        estimated_limit_s=estimated_limit_s,
        all_of=partition.name if partition is not None and estimated_limit_s >= most_s else "",
    )


def remarks(
    layouts: Sequence[Layout], request: JobRequest, limit: Partition | None, site: Site, *, inside: bool = False
) -> tuple[str, ...]:
    """Return what whoever submits `layouts` should know: the MPI library that will run, cores that nobody uses.

    Those of a job `inside` of which they run are nobody else's, whatever the launches ask for.
    """
    mpi = "that of the container" if request.container else mpi_title() or "none that is found here"
    library = f"MPI: {mpi}"
    modules = [module for module in site.modules if re.search("mpi|mvapich", module.lower())]
    if modules and mpi_choice() == "wheel" and not request.container:
        library += f", and not that of the site's module {modules[0]}: {setting('mpi', 'system')} takes it"
    cores = limit.cores_per_node if limit else None
    if limit is None or not cores:
        return (library,)
    fullest = max(layouts, key=lambda layout: layout.ranks_per_node * layout.threads)
    ranks = "1 rank" if fullest.ranks_per_node == 1 else f"{fullest.ranks_per_node} ranks"
    threads = "1 thread" if fullest.threads == 1 else f"{fullest.threads} threads"
    of_cores = "1 core" if cores == 1 else f"{cores} cores"
    node = f"a node: {ranks} x {threads} of {of_cores}"
    ranks_per_node = setting("ranks_per_node")
    if fullest.ranks_per_node * fullest.threads < cores and request.exclusive:
        node += f"; the others are idle: {ranks_per_node} or {setting('threads')} use more"
        if not inside:
            node += f", {setting('share_nodes', True)} leaves them to others, whose work then disturbs the times"
    elif limit.numa_domains is None and fullest.ranks_per_node == 1 and cores > 1:
        node += f"; its NUMA domains are not known here: numa_domains in a site file, or {ranks_per_node}, says them"
    return (library, node)


def warn_of_nodes(layouts: Sequence[Layout], limit: Partition | None, unusable: Sequence[str]) -> str | None:
    """Return that a job of the largest of `layouts` waits for nodes that are `unusable` now, None where it does not."""
    most = max(layout.nodes for layout in layouts)
    if limit is None or limit.nodes is None or most <= limit.nodes - len(unusable):
        return None
    usable = limit.nodes - len(unusable)
    reasons = "; ".join(unusable[:_SHOWN]) + ("; ..." if len(unusable) > _SHOWN else "")
    return (
        f"a job of {most} nodes waits until they can be used: now {usable} of {limit.nodes} can in partition "
        f"{limit.name} ({reasons}); ask for {setting('nodes')} up to {usable}, or let it wait"
    )


# What the jobs of a sweep have used, asked of its scheduler and kept in its folder.

_PATIENCE_S = 10.0  # a job ends, and is accounted for, a little after its launches
_LOG = logging.getLogger(__name__)


def note_ended(files: SweepFolder, ended: Sequence[Running]) -> None:
    """Keep that the launches `ended` are over and their jobs to be asked for."""
    if ended:
        new = [Account(job=over.job, scheduler=over.scheduler, launch=over.point.folder) for over in ended]
        write_atomic(files.accounts, encode((*read_accounts(files), *new)))


def ask_accounts(files: SweepFolder, scheduler: Scheduler) -> None:
    """Ask for every job of the sweep of `files` that is over and not known; one that is not found is asked for again.

    Accounting is no reason to fail: a scheduler that does not answer is asked by the next command.
    """
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while not _ask(files, scheduler) and time.monotonic() < deadline:
            time.sleep(scheduler.poll_s)
    except UserError as error:
        _LOG.warning("the next command asks for accounting again: %s", error)


def _ask(files: SweepFolder, scheduler: Scheduler) -> bool:
    """Ask once, and return whether nothing is left to be asked for."""
    accounts = read_accounts(files)
    wanted = [
        account
        for account in accounts
        if account.usage is None and not account.missing and account.scheduler == scheduler.name
    ]
    if not wanted:
        return True
    usages = scheduler.account(sorted({account.job for account in wanted}))
    if isinstance(usages, str):
        answered = {account: replace(account, missing=usages) for account in wanted}
    else:
        answered = {account: replace(account, usage=usages[account.job]) for account in wanted if account.job in usages}
    if answered:
        completed = tuple(answered.get(account, account) for account in accounts)
        write_atomic(files.accounts, encode(completed))
    return len(answered) == len(wanted)
