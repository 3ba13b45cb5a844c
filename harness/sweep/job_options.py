"""Request: what is asked of a batch system for every job of a sweep, and how its ranks are started."""

import re
import shlex
from dataclasses import dataclass

from harness.base.errors import UserError, unknown
from harness.schema.option import option

LAUNCHERS = ("auto", "srun --mpi=pmix", "srun --mpi=pmi2", "mpirun")
SHAPES = ("jobs", "array", "nested", "block")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """Settings of the jobs; an empty text means: not asked for.

    `memory` is per node, ``0`` for all of it. `shape`: ``jobs`` (one for each launch), ``array`` (one array for each
    layout), ``nested`` (one allocation of the largest size, in which all follow each other) or ``block`` (one for each
    repeat, whose launches train in turns).

    Raises:
        UserError: a field is out of its range or could not be written into a directive.
    """

    partition: str = option("Partition or queue.", "", common=True)
    account: str = option("Account that pays.", "", common=True)
    project: str = option("Project (PBS).", "")
    qos: str = option("Quality of service (Slurm).", "")
    constraint: str = option("Feature that nodes must have.", "")
    reservation: str = option("Reservation to run in.", "")
    walltime: str = option(
        "Time limit of a launch, H:MM:SS or D-HH:MM:SS, or by nodes: 1:00:00,8=0:20:00 (from 8 nodes on) "
        "[default: 1:00:00].",
        "1:00:00",
        common=True,
    )
    memory: str = option("Memory per node, such as 16G.", "")
    exclusive: bool = option("Nodes for ourselves [default: exclusive].", True, opposite="share-nodes")
    mail: str = option("Address to write to when a job ends.", "")
    requeue: bool = option("Let the scheduler start interrupted jobs again.", False)
    signal_s: int = option("End the ranks so many seconds before the limit (Slurm).", 0, name="signal")
    after: str = option("Job that must have succeeded first.", "")
    launcher: str = option("auto, 'srun --mpi=pmix', 'srun --mpi=pmi2' or mpirun.", "auto")
    extra: tuple[str, ...] = option("Any other options of a directive, as the scheduler reads them.", ())
    container: str = option("Apptainer or Singularity image in which the ranks run.", "")
    shape: str = "jobs"
    max_jobs: int = option("Jobs submitted at a time [default: 500].", 500)
    retries: int = option("Try a launch that fails again, so many times [default: 0].", 0)

    def __post_init__(self) -> None:
        for field in ("partition", "account", "project", "qos", "constraint", "reservation", "mail", "after"):
            value = getattr(self, field)
            # A directive is read by the scheduler, not by the shell: quoting would not help.
            if value and not re.fullmatch(r"[\w.,:;@%&|*=\[\]()/+-]+", value, flags=re.ASCII):
                raise UserError(f"{field.upper()}={value} cannot stand in a job script: use one word without quotes")
        for line in self.extra:
            _check_extra(line)
        _walltimes(self.walltime)
        if self.memory and not re.fullmatch(r"0|[1-9]\d*[KMGT]", self.memory):
            raise UserError(f"MEMORY={self.memory} is not an amount: write 16G (or K, M, T), or 0 for all of a node")
        if self.signal_s < 0:
            raise UserError(f"SIGNAL={self.signal_s} is negative: write the seconds before the time limit")
        if self.max_jobs < 1:
            raise UserError(f"MAX_JOBS={self.max_jobs} is too small: use at least 1")
        if self.retries < 0:
            raise UserError(f"RETRIES={self.retries} is negative: write how often a launch that fails is tried again")
        if self.launcher not in LAUNCHERS:
            raise unknown("LAUNCHER", self.launcher, LAUNCHERS)
        if self.shape not in SHAPES:
            raise unknown("shape", self.shape, SHAPES)

    def limit_s(self, nodes: int) -> int:
        """Return the seconds that one launch on so many nodes may take."""
        return next(limit for least, limit in reversed(_walltimes(self.walltime)) if nodes >= least)


def _check_extra(line: str) -> None:
    """Refuse what would not be one directive.

    Raises:
        UserError: it is not an option, its quotation is not closed or it has more than one line.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UserError(f"EXTRA={line} cannot stand in a job script ({error}): close the quotation") from error
    if not words or not words[0].startswith("-") or not line.isprintable():
        raise UserError(f"EXTRA={line} is not an option: write it as in a directive, such as EXTRA='--gres=nvme:1'")


def _walltimes(text: str) -> list[tuple[int, int]]:
    """Return pairs of the fewest nodes that a time limit is for and its seconds, the fewest first.

    Raises:
        UserError: the text is not such a list.
    """
    first, *others = text.split(",")
    found = {1: seconds(first)}
    for part in others:
        nodes, _, limit = part.partition("=")
        if not re.fullmatch(r"[1-9]\d{0,6}", nodes, flags=re.ASCII):
            raise UserError(f"WALLTIME={text} is not a list of time limits: write 1:00:00,8=0:20:00 (from 8 nodes on)")
        found[int(nodes)] = seconds(limit)
    return sorted(found.items())


def seconds(walltime: str) -> int:
    """Return the seconds of a wall time ``H:MM:SS`` or ``D-HH:MM:SS``.

    Raises:
        UserError: it is not of that form, or nothing.
    """
    match = re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,5}):([0-5]\d):([0-5]\d)", walltime, flags=re.ASCII)
    parts = [int(part or 0) for part in match.groups()] if match else []
    total = sum(part * unit for part, unit in zip(parts, (86400, 3600, 60, 1), strict=False))
    if not total:
        raise UserError(f"WALLTIME={walltime} is not a time limit: write hours:minutes:seconds, such as 0:30:00")
    return total


def clock_seconds(text: str) -> float:
    """Return the seconds of a time as schedulers write it: ``D-HH:MM:SS``, ``HH:MM:SS``, ``MM:SS.mmm``.

    Raises:
        ValueError: it is none.
    """
    days, _, clock = text.rpartition("-")
    hours, minutes, rest = ["0", "0", *clock.split(":")][-3:]
    return int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + float(rest)


def size_bytes(text: str) -> int:
    """Return an amount of memory as schedulers write it, such as ``16384kb`` or ``5266672K``; 0 for none."""
    match = re.fullmatch(r"([\d.]+)([kmgtp]?)b?", text.lower())
    return int(float(match[1]) * 1024 ** "_kmgtp".find(match[2] or "_")) if match else 0


def walltime(total: float) -> str:
    """Return seconds as ``H:MM:SS``, rounded up."""
    whole = -int(-total // 1)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
