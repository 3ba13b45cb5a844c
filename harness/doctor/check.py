"""Check: one line of the doctor's table."""

from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What was found out about `topic`: ``ok``, ``warning`` (it works, but), or ``problem`` (runs will fail).

    `fix` is one line that mends it, empty for what is ok.
    """

    topic: str
    status: str
    found: str
    fix: str = ""


def ok(topic: str, found: str) -> Check:
    """Return the line for something in order."""
    return Check(topic=topic, status=OK, found=found)


def warning(topic: str, found: str, fix: str) -> Check:
    """Return the line for something that works worse than it could."""
    return Check(topic=topic, status=WARNING, found=found, fix=fix)


def problem(topic: str, found: str, fix: str) -> Check:
    """Return the line for something that runs need and that does not work."""
    return Check(topic=topic, status=PROBLEM, found=found, fix=fix)
