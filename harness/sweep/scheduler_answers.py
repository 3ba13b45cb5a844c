"""What any scheduler says of a job: its state, and how a submission ends that gives no job."""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.processes import Reply, run_program
from harness.base.setting_names import setting


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What the scheduler knows of a job. `phase` is ``queued``, ``running``, ``present``, ``ended`` or ``unknown``.

    ``present`` is a job that the scheduler lists in a state that is not known here: it may still be running. ``ended``
    is a final state that is known. ``unknown`` is a job that the scheduler does not list.


    `word` is the scheduler's own name for the state, `reason` its reason, `nodes` where it runs, `starts` when it
    expects to start a job that waits, empty where it says nothing. `exit_code` is None before the end, and where the
    scheduler does not say. `forced` says that not the script itself came to an end: a limit, a lost node, somebody's
    hand. `timed_out` says that it was the time limit.
    """

    phase: str
    word: str = ""
    reason: str = ""
    nodes: str = ""
    starts: str = ""
    exit_code: int | None = None
    forced: bool = False
    timed_out: bool = False


# How a submission ends that gives no job: it is refused, it has to wait, or its outcome is not known.
#
# Two things decide what is done next: the answer was lost, or the queue is full. Each scheduler's module has the few
# phrases that tell them (`RetryPhrases`). Anything else is the scheduler's own sentence, which is shown.


class QueueFull(UserError):
    """The queue takes no more jobs of this user for now.

    Without `certain` the scheduler's words stand for a job that is too large as well.
    """

    def __init__(self, text: str, *, certain: bool) -> None:
        super().__init__(
            f"{text}; wait until jobs of yours have ended, or ask for fewer at a time with {setting('max_jobs')}"
        )
        self.text = text
        self.certain = certain


class SubmissionRefused(UserError):
    """The scheduler will not take such a job, however often it is submitted. `text` holds its own words."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}; change what it names")
        self.text = text


class SubmissionUnknown(UserError):
    """Whether the scheduler has the job is not known. With `lost` its answer was lost, else it named no job."""

    def __init__(self, text: str, *, lost: bool) -> None:
        super().__init__(text)
        self.text = text
        self.lost = lost


class NotQueued(UserError):
    """The scheduler's answer was lost, and the job is not there: it may be submitted again."""


class UnreadableAnswer(UserError):
    """A scheduler has answered, and the answer cannot be read."""


def unreadable(program: str, line: str, wanted: str) -> UnreadableAnswer:
    """Return the error for a `line` that `program` answered, which is not what was `wanted` of it."""
    return UnreadableAnswer(f"{program} answers {line[:200]!r}, which is not {wanted}")


def keep_unended(jobs: dict[str, tuple[State, str]], identifier: str, state: State, name: str) -> None:
    """Put the state and name of a job into `jobs`; of two lines for one job the one that has not ended counts."""
    listed = jobs.get(identifier)
    if listed is None or listed[0].phase == "ended":
        jobs[identifier] = (state, name)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPhrases:
    """Regular expressions for what a scheduler prints, looked up in this order.

    `lost`: its answer did not arrive, or it had none. `full`: it takes no more jobs of this user for now.
    `full_or_too_large`: its words stand for a job that is too large as well. The exit codes with either meaning are in
    `full_codes` and `full_or_too_large_codes`.
    """

    lost: Sequence[str]
    full: Sequence[str]
    full_or_too_large: Sequence[str] = ()
    full_codes: Sequence[int] = ()
    full_or_too_large_codes: Sequence[int] = ()


def submission_error(program: str, reply: Reply, phrases: RetryPhrases) -> UserError:
    """Return the error that `reply` of a submission command stands for.

    What is neither lost nor a full queue is a `SubmissionUnknown` that is not lost: the job is looked for before the
    scheduler's sentence is taken for a refusal, so that no job is ever submitted twice.
    """
    if reply.code is None:
        return SubmissionUnknown(reply.err, lost=True)
    text = f"{program} says: {message(reply)}"
    printed = f"{reply.err}\n{reply.out}"
    if _has(printed, phrases.lost):
        return SubmissionUnknown(text, lost=True)
    if _has(printed, phrases.full) or reply.code in phrases.full_codes:
        return QueueFull(text, certain=True)
    if _has(printed, phrases.full_or_too_large) or reply.code in phrases.full_or_too_large_codes:
        return QueueFull(text, certain=False)
    return SubmissionUnknown(text, lost=False)


def _has(printed: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, printed, re.IGNORECASE | re.DOTALL) for pattern in patterns)


def message(reply: Reply) -> str:
    """Return the error of a command in one line."""
    lines = [line.strip() for line in (reply.err or reply.out).splitlines() if line.strip()]
    return "; ".join(lines[:3]) or f"exit code {reply.code}"


# Calls of a scheduler's commands, and the environment that these and launches must not inherit.

COMMAND_LIMIT_S = 120.0
"""Seconds that a scheduler's command may take; then it is ended."""
# What the user's shell sets for jobs of his own must not change ours; how to reach the scheduler must stay.
_PREFIXES = (
    *("SBATCH_", "SLURM_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_"),
    *("PBS_", "QSTAT_", "QSUB_"),
)
# What a launch on this machine must not take for its own job, when the command was given inside one.
_INHERITED = ("SLURM", "PBS_", "LSB_", "FLUX_", "PMI_", "PMIX_", "PALS_", "OMPI_COMM_", "PRTE_LAUNCHED")
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"} | {
    *("PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT", "PBS_EXEC", "PBS_HOME")
}


def variables_of_a_job() -> tuple[str, ...]:
    """Return the names of this process's variables that are of a batch job that it may run in."""
    return tuple(name for name in os.environ if name.startswith(_INHERITED))


def environment_of_no_job() -> dict[str, str]:
    """Return this process's environment without the variables of a batch job that it may run in."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_INHERITED)}


_OF_A_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "FLUX_ENCLOSING_ID", "HARNESS_JOB")
_OF_AN_MPI_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID")
_OF_A_TASK = "SLURM_PROCID"  # which a batch script has too


def in_a_job() -> bool:
    """Return whether this process runs inside a batch job or a launch, or is a rank."""
    return in_a_rank() or any(name in os.environ for name in (*_OF_A_JOB, _OF_A_TASK))


def in_a_rank() -> bool:
    """Return whether this process is a rank of MPI, or belongs to one."""
    return any(name in os.environ for name in _OF_AN_MPI_RANK)


class CommandRunner:
    """Runs commands and counts them, so that a sweep can say what it cost the scheduler."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.handles: tuple[int, ...] = ()
        """Open files that a submission command inherits: as long as it lives they are open, whatever becomes of us."""

    def ask(self, words: Sequence[str]) -> Reply:
        """Run a command and return its answer, whatever the exit code; raise a UserError if it gives none."""
        reply = self._call(words)
        if reply.code is None:
            raise UserError(
                f"{reply.err}: run this on a login node, try again later, or use {setting('scheduler', 'local')}"
            )
        return reply

    def submit(self, words: Sequence[str]) -> Reply:
        """Run a command that submits a job and return its reply, with a code of None if it was ended without one.

        Raises:
            UserError: there is no such command, so that nothing was submitted.
        """
        if shutil.which(words[0]) is None:
            raise UserError(f"{words[0]} is not here: run this on a login node, or use {setting('scheduler', 'local')}")
        return self._call(words, self.handles)

    def _call(self, words: Sequence[str], handles: Sequence[int] = ()) -> Reply:
        self.calls[words[0]] = self.calls.get(words[0], 0) + 1
        unset = {name: None for name in os.environ if name.startswith(_PREFIXES) and name not in _KEPT}
        return run_program(words, limit_s=COMMAND_LIMIT_S, changes=unset, handles=handles)

    def run(self, words: Sequence[str]) -> str:
        """Run a command and return its standard output.

        Raises:
            UserError: it is not there, gives no answer or ends with an error; the sentence holds its own.
        """
        answer = self.ask(words)
        if answer.code:
            raise UserError(f"{words[0]} refused: {message(answer)}")
        return answer.out
