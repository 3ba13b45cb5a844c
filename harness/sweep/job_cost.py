"""What the jobs of a sweep may cost, and what they have used."""

import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.comm.harness_variables import mpi_choice
from harness.comm.mpi_library import mpi_version
from harness.schema.layout import Layout
from harness.schema.record import Account, decode_file, encode, read_accounts
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.job_plan import JobPlan
from harness.sweep.plan import format_seconds, time_left
from harness.sweep.schedulers import Scheduler
from harness.sweep.site import JobRequest, Partition, Site, walltime, walltime_seconds
from harness.sweep.sweep_files import Running
from harness.sweep.turn_block import SeriesEnd

FIRST_LIMIT_S = 1800.0
"""Seconds of a job in turns before anything was measured."""
_BLOCKS = 3  # that the time limit of a job in turns is for
_RESERVE = 1.5  # times what they took
_START_S = 120.0  # of a job, before its first block and after its last


def longest_block_s(files: SweepFolder) -> float | None:
    """Return the seconds of the longest block that jobs of the sweep of `files` have made, None before the first."""
    ends = [decode_file(path, SeriesEnd) for path in files.jobs.glob("*.end")]
    return max((end.longest_s for end in ends if end is not None and end.blocks), default=None)


def time_limit(plan: JobPlan, request: JobRequest, limit: Partition | None, block_s: float | None = None) -> float:
    """Return the seconds of a job's time limit, within what the partition allows.

    Where none is asked for, a job in turns has time for three blocks of `block_s` seconds, half as much again, and its
    start. Launches that follow each other in one job have the sum of theirs. Where that is not enough, the rest is
    missing and runs with the next command.
    """
    if plan.in_turns:
        total = _blocks_limit_s(plan, request, block_s)
    elif plan.mode == "turns":
        total = sum(request.limit_s(point.layout.nodes) for point in plan.points)
    else:
        return request.limit_s(plan.layout.nodes)
    if limit is not None and limit.walltime:
        total = min(total, walltime_seconds(limit.walltime))
    return total


def _blocks_limit_s(plan: JobPlan, request: JobRequest, block_s: float | None) -> float:
    if request.walltime:
        return request.limit_s(plan.layout.nodes)
    if block_s is None:
        return FIRST_LIMIT_S
    estimated_s = _RESERVE * max(_BLOCKS, len(plan.needed_blocks)) * block_s + _START_S
    return 60.0 * math.ceil(estimated_s / 60)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHours:
    """Node-hours: `expected` by the launches that have finished (None before the first), `limit` by time limits.

    `enough` is a limit that the longest launch so far keeps three times over, if that is far below what is asked for.
    `why_limit` says where the time limit of jobs in turns is from.
    """

    expected: float | None
    limit: float
    jobs: int
    finished: int
    enough: str = ""
    why_limit: str = ""

    def __str__(self) -> str:
        plural = "" if self.jobs == 1 else "s"
        limit = f"at most {self.limit:.2f} node-hours by the time limits of {self.jobs} job{plural}{self.why_limit}"
        if self.expected is None:
            return f"cost: {limit}"
        limit += f"; judging by these, WALLTIME={self.enough} is enough, and starts sooner" if self.enough else ""
        return f"cost: about {self.expected:.2f} node-hours by {self.finished} finished launches, {limit}"

    @property
    def likely(self) -> float:
        """The node-hours to ask a confirmation for: what is expected, else the limit."""
        return self.limit if self.expected is None else self.expected


def estimate(
    plans: Sequence[JobPlan],
    request: JobRequest,
    partition: Partition | None,
    durations: Mapping[Layout, Sequence[float]],
    block_s: float | None = None,
) -> NodeHours:
    """Return the cost of `plans`.

    `durations` holds the seconds of finished launches by layout, `block_s` those of the longest block.
    """
    limit = 0.0
    expected = 0.0
    for plan in plans:
        limit += plan.layout.nodes * time_limit(plan, request, partition, block_s) * plan.jobs / 3600
        if plan.in_turns:
            expected += plan.layout.nodes * (block_s or 0.0) * len(plan.needed_blocks) / 3600
            continue
        for point in plan.points:
            layout = plan.layout if plan.mode == "turns" else point.layout
            expected += layout.nodes * (time_left([point], durations) or 0.0) / 3600
    finished = sum(len(values) for values in durations.values())
    enough_s = 60 * math.ceil(3 * max(map(max, durations.values()), default=0.0) / 60)
    one_by_one = not any(plan.in_turns for plan in plans)
    shorter = finished and one_by_one and all(2 * enough_s < request.limit_s(plan.layout.nodes) for plan in plans)
    return NodeHours(
        expected=expected if finished else None,
        limit=limit,
        jobs=sum(plan.jobs for plan in plans),
        finished=finished,
        enough=walltime(enough_s) if shorter else "",
        why_limit="" if one_by_one or request.walltime else _why_limit(plans, request, partition, block_s),
    )


def _why_limit(
    plans: Sequence[JobPlan], request: JobRequest, partition: Partition | None, block_s: float | None
) -> str:
    """Return where the time limit of jobs in turns is from, in brackets."""
    longest = max(time_limit(plan, request, partition, block_s) for plan in plans)
    if block_s is None:
        return f" ({walltime(longest)}, as no block of this sweep was made yet: WALLTIME= says otherwise)"
    return f" ({walltime(longest)}, as a block took {format_seconds(block_s)}: WALLTIME= says otherwise)"


def remarks(layouts: Sequence[Layout], request: JobRequest, limit: Partition | None, site: Site) -> tuple[str, ...]:
    """Return what whoever submits `layouts` should know: the MPI library that will run, cores that nobody uses."""
    mpi = "that of the container" if request.container else mpi_version() or "none that is found here"
    library = f"MPI: {mpi}"
    modules = [module for module in site.modules if re.search("mpi|mvapich", module.lower())]
    if modules and mpi_choice() == "wheel" and not request.container:
        library += f", and not that of the site's module {modules[0]}: MPI=system takes it"
    cores = limit.cores_per_node if limit else None
    if limit is None or not cores:
        return (library,)
    fullest = max(layouts, key=lambda layout: layout.ranks_per_node * layout.threads)
    ranks = "1 rank" if fullest.ranks_per_node == 1 else f"{fullest.ranks_per_node} ranks"
    threads = "1 thread" if fullest.threads == 1 else f"{fullest.threads} threads"
    of_cores = "1 core" if cores == 1 else f"{cores} cores"
    node = f"a node: {ranks} x {threads} of {of_cores}"
    if fullest.ranks_per_node * fullest.threads < cores and request.exclusive:
        node += (
            "; the others are idle: RANKS_PER_NODE= or THREADS= use more, SHARE_NODES=1 leaves them to others, whose "
            "work then disturbs the times"
        )
    elif limit.numa_domains is None and fullest.ranks_per_node == 1 and cores > 1:
        node += "; its NUMA domains are not known here: numa_domains in a site file, or RANKS_PER_NODE=, says them"
    return (library, node)


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
