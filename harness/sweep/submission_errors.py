"""How a submission ends that gives no job: it is refused, it has to wait, or its outcome is not known.

A scheduler's module has the table of its texts (`Phrase`); `submission_error` looks an answer up in it, once, and the
rest of the program decides by types and reasons.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.processes import Reply


class Reason(enum.StrEnum):
    """Why a scheduler takes no job like this one."""

    TIME_LIMIT = "time limit"
    ACCOUNT = "account"
    PARTITION = "partition"
    QOS = "quality of service"
    RESERVATION = "reservation"
    NODES = "node count"
    CORES = "core count"
    MEMORY = "memory"
    GPUS = "GPUs"
    FEATURE = "node feature"
    RESOURCES = "resources of a node"
    ARRAY = "job array"
    DEPENDENCY = "dependency"
    PERMISSION = "permission"
    CLOSED = "submissions are closed"
    SCRIPT = "script"
    POLICY = "policy"
    OTHER = "reason of its own"


FIX = {
    Reason.TIME_LIMIT: "ask for a shorter WALLTIME, or for a PARTITION or QOS that allows it",
    Reason.ACCOUNT: "set ACCOUNT to one of yours",
    Reason.PARTITION: "set PARTITION to one that is open to you",
    Reason.QOS: "set QOS to one of yours",
    Reason.RESERVATION: "set RESERVATION to one that is open to you, or leave it out",
    Reason.NODES: "ask for fewer NODES",
    Reason.CORES: "ask for fewer RANKS_PER_NODE or THREADS",
    Reason.MEMORY: "set MEMORY to less",
    Reason.GPUS: "ask for fewer GPUS a node, or for a PARTITION that has them",
    Reason.FEATURE: "change CONSTRAINT",
    Reason.RESOURCES: "ask for less (NODES, RANKS_PER_NODE, THREADS, GPUS, MEMORY), or for another PARTITION",
    Reason.ARRAY: "leave ARRAY=1 out, or ask for fewer REPEATS",
    Reason.DEPENDENCY: "change AFTER",
    Reason.PERMISSION: "ask the site to let you submit jobs there",
    Reason.CLOSED: "try again when the site takes jobs",
    Reason.SCRIPT: "look at TEMPLATE, EXTRA and the paths",
    Reason.POLICY: "ask for less (NODES, WALLTIME), or submit when your other jobs have ended",
    Reason.OTHER: "change what it names",
}
# These are not about the size of a job: what is refused for them is refused for every layout.
OF_EVERY_LAYOUT = frozenset(
    (
        Reason.ACCOUNT,
        Reason.PARTITION,
        Reason.QOS,
        Reason.RESERVATION,
        Reason.FEATURE,
        Reason.DEPENDENCY,
        Reason.PERMISSION,
        Reason.CLOSED,
    )
)


class QueueFull(UserError):
    """The queue takes no more jobs of this user for now.

    Without `certain` the scheduler's words stand for a job that is too large as well.
    """

    def __init__(self, text: str, *, certain: bool) -> None:
        super().__init__(f"{text}; wait until jobs of yours have ended, or ask for fewer at a time with MAX_JOBS")
        self.text = text
        self.certain = certain


class SubmissionRefused(UserError):
    """The scheduler will not take such a job, however often it is submitted. `text` holds its own words."""

    def __init__(self, text: str, *, reason: Reason) -> None:
        super().__init__(f"{text}; {FIX[reason]}")
        self.text = text
        self.reason = reason


class SubmissionUnknown(UserError):
    """Whether the scheduler has the job is not known. With `lost` its answer was lost, else it was not understood."""

    def __init__(self, text: str, *, lost: bool) -> None:
        super().__init__(text)
        self.text = text
        self.lost = lost


class NotQueued(UserError):
    """The scheduler's answer was lost, and the job is not there: it may be submitted again."""


class UnreadableAnswer(UserError):
    """A scheduler has answered, and the answer cannot be read."""


class Outcome(enum.Enum):
    """What a text of a scheduler means for a submission that is no refusal."""

    FULL = enum.auto()
    FULL_OR_REFUSED = enum.auto()
    LOST = enum.auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class Phrase:
    """A regular expression for what a scheduler prints, what it means, and the versions that print it."""

    pattern: str
    means: Reason | Outcome
    versions: str


def phrases(versions: str, means: Reason | Outcome, *patterns: str) -> tuple[Phrase, ...]:
    """Return table lines of one meaning."""
    return tuple(Phrase(pattern=pattern, means=means, versions=versions) for pattern in patterns)


def submission_error(
    program: str, reply: Reply, table: Sequence[Phrase], codes: Mapping[int, Reason | Outcome] | None = None
) -> UserError:
    """Return the error that `reply` of a submission command stands for.

    The first line of `table` that fits decides, else the exit code by `codes`; what neither knows is a
    `SubmissionUnknown`, as is a command that was ended without an answer.
    """
    text = f"{program} says: {message(reply)}"
    if reply.code is None:
        return SubmissionUnknown(reply.err, lost=True)
    printed = f"{reply.err}\n{reply.out}"
    means = next((phrase.means for phrase in table if re.search(phrase.pattern, printed, re.IGNORECASE)), None)
    if means is None and codes is not None:
        means = codes.get(reply.code)
    if isinstance(means, Reason):
        return SubmissionRefused(text, reason=means)
    if means in (Outcome.FULL, Outcome.FULL_OR_REFUSED):
        return QueueFull(text, certain=means is Outcome.FULL)
    return SubmissionUnknown(text, lost=means is Outcome.LOST)


def message(reply: Reply) -> str:
    """Return the error of a command in one line."""
    lines = [line.strip() for line in (reply.err or reply.out).splitlines() if line.strip()]
    return "; ".join(lines[:3]) or f"exit code {reply.code}"
