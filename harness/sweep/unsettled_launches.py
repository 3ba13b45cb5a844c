"""The launches that are submitted and not settled, as a sweep's folder lists them."""

from dataclasses import dataclass
from datetime import datetime

from harness.base.files import write_atomic
from harness.base.removal import remove_file
from harness.schema.point import Point
from harness.schema.record import decode_file, encode
from harness.schema.sweep_folder import SweepFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A launch that was submitted and has not been settled. `job` is the scheduler's identifier.

    `name` is the job's name in the queue and `task` its place in an array, -1 in a plain job. `job` is empty
    between the decision to submit and the scheduler's answer: then the name finds it. `together` launches of its job
    train in turns on the same cores.
    """

    point: Point
    job: str
    started: datetime
    scheduler: str = "local"
    name: str = ""
    task: int = -1
    together: int = 1


def write_running(files: SweepFolder, running: tuple[Running, ...]) -> None:
    """Say which launches are under way; `harness status` reads it."""
    if running:
        write_atomic(files.running, encode(running))
    else:
        remove_file(files.running)


def read_running(files: SweepFolder) -> tuple[Running, ...]:
    """Return the launches that were under way when the sweep last wrote."""
    return decode_file(files.running, tuple[Running, ...]) or ()
