"""What became of a launch that did not reach its end."""

from dataclasses import dataclass
from datetime import datetime

from harness.schema.point import Point


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A launch that did not reach its end. `reason` is its first error line, `tail` its last output lines.

    `seconds` is how long it had this machine's cores, a block's shared out to its launches; 0 of a batch system's job,
    which accounting knows.
    """

    point: Point
    ended: datetime
    exit_code: int
    reason: str
    tail: str
    seconds: float = 0.0
