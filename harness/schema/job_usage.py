"""What jobs used, as their scheduler has measured it."""

from dataclasses import dataclass

from harness.base.record_words import JOB, check_text


@dataclass(frozen=True, kw_only=True, slots=True)
class JobUsage:
    """What an ended job used, as measured by its scheduler; None is what that does not measure.

    `cpu_s` is processor time of all processes. `memory_bytes` is the most memory `memory_of` (Slurm: one process that
    it samples; PBS: the job) had. Of a requeued job it is what it used since its last start.
    """

    elapsed_s: float
    nodes: int
    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_of: str = ""
    energy_j: float | None = None

    @property
    def node_hours(self) -> float:
        """The node-hours that the job had."""
        return self.elapsed_s * self.nodes / 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """What is known of the `job` of a `launch` (its folder's name); jobs may be of several launches.

    `usage` is None while nothing is known, and for good where `missing` says why.
    """

    job: str
    scheduler: str
    launch: str
    usage: JobUsage | None = None
    missing: str = ""

    def __post_init__(self) -> None:
        check_text("job", self.job, JOB)
        check_text("launch", self.launch)
