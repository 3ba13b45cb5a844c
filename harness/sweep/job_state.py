"""What a scheduler knows of a job, in the words of all of them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What the scheduler knows of a job. `phase` is ``queued``, ``running``, ``ended`` or ``unknown``.

    `word` is the scheduler's own name for the state, `reason` its reason, `nodes` where it runs. `exit_code` is
    None before the end, and where the scheduler does not say. `forced` says that not the script itself came to
    an end: a limit, a lost node, somebody's hand. `timed_out` says that it was the time limit.
    """

    phase: str
    word: str = ""
    reason: str = ""
    nodes: str = ""
    exit_code: int | None = None
    forced: bool = False
    timed_out: bool = False
