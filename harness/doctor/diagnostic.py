"""A line of the doctor's table."""

from dataclasses import dataclass
from functools import partial

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What was found out about `topic`: ``ok``, ``warning`` (it works, but), or ``problem`` (runs will fail).

    `fix` is one line that mends it, empty for what is ok.
    """

    status: str
    topic: str
    finding: str
    fix: str = ""


ok = partial(Diagnostic, OK)
warning = partial(Diagnostic, WARNING)
problem = partial(Diagnostic, PROBLEM)
