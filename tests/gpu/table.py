"""Checks in a row within a time, and the table of what came out."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    PASSED = "pass"
    FAILED = "fail"
    SKIPPED = "skipped"


class Failed(Exception):
    """A check has found something wrong; the message says what."""


class Skipped(Exception):
    """A check cannot be made here; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check: `run` takes the seconds that it may use and returns what it found; it needs about `seconds`."""

    name: str
    seconds: float
    run: Callable[[float], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What came of a check, and how long it took."""

    name: str
    status: Status
    seconds: float
    detail: str


def run_check(check: Check, left: float, clock: Callable[[], float] = time.monotonic) -> Row:
    """Run one check with `left` seconds for it and all that follow; whatever it raises is its row."""
    if left < check.seconds:
        detail = f"{left:.0f} s are left, it needs {check.seconds:.0f}"
        return Row(name=check.name, status=Status.SKIPPED, seconds=0.0, detail=detail)
    begin = clock()
    try:
        detail = check.run(left)
        status = Status.PASSED
    except Skipped as reason:
        detail = str(reason)
        status = Status.SKIPPED
    except Exception as error:  # noqa: BLE001 - the others are still to run
        detail = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
        status = Status.FAILED
    return Row(name=check.name, status=status, seconds=clock() - begin, detail=detail)


def run_checks(checks: Sequence[Check], limit_s: float) -> list[Row]:
    """Run the checks in their order in at most so many seconds, and say of each as it ends what came of it."""
    ends = time.monotonic() + limit_s
    rows = list[Row]()
    for check in checks:
        row = run_check(check, ends - time.monotonic())
        print(f"{row.status}: {row.name}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text, and how many there are of each status."""
    width = max(len(row.name) for row in rows)
    lines = [f"{row.status:7}  {row.name:{width}}  {row.seconds:5.0f} s  {row.detail}" for row in rows]
    counts = [f"{sum(row.status is status for row in rows)} {status}" for status in Status]
    return "\n".join([*lines, ", ".join(counts)])
