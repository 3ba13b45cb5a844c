"""`harness status`: how far a sweep is, from any terminal."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.sweep.status import Entry, Status


_TAIL_LINES = 3


@click.command(name="status")
@click.argument("sweep", required=False)
@click.option(
    "--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True, help="Folder of records."
)
def command(sweep: str | None, results: Path) -> None:
    """Tell what is done, running, failed, missing and skipped of every sweep whose name begins with SWEEP."""
    from harness.sweep.status import find_sweeps, read_status

    folders = find_sweeps(results, sweep)
    for folder in folders:
        _print(read_status(folder), folder, whole=sweep is not None)


def _print(status: "Status", folder: Path, *, whole: bool) -> None:
    """Print a sweep: one line if it is done and not asked for, else every launch, those that are alike in one line."""
    from harness.schema.sweep import LOGS
    from harness.sweep.plan import format_seconds

    states = ("done", "invalid", "queued", "running", "ended", "unknown", "failed", "missing")
    counts = ", ".join(f"{status.count(state)} {state}" for state in states if status.count(state))
    counts += f" ({status.other_code} more ran other code)" if status.other_code else ""
    left = f", about {format_seconds(status.left)} left" if status.left is not None else ""
    at_work = status.active or status.count("queued") or status.count("running")
    click.echo(f"{status.name}: {counts}{left}{'' if at_work else ' (nothing runs now)'}")
    if not whole and not at_work and status.count("done") == len(status.entries) and not status.skipped:
        return
    for entry, repeats in _alike(status.entries):
        detail = f": {entry.detail}" if entry.detail else ""
        click.echo(f"  {entry.state:8} {entry.point.layout}, {repeats}{detail}")
        if entry.state == "failed":
            for line in entry.tail.splitlines()[-_TAIL_LINES:]:
                click.echo(f"           | {line}")
            click.echo(f"           log: {folder / LOGS / entry.point.folder}.log")
    for skipped in status.skipped:
        click.echo(f"  skipped  {skipped.layout}: {skipped.reason}")
    if status.count("invalid") and not at_work:
        click.echo(f"  `harness retry {status.name}` measures invalid launches again")
    if not status.active and (status.count("ended") or status.count("queued") or status.count("running")):
        click.echo(f"  no command waits for these launches: `harness collect {status.name}` takes in what has ended")


def _alike(entries: "Iterable[Entry]") -> "list[tuple[Entry, str]]":
    """Return one entry for all of the same layout and state with the same to tell, and its repeats in words."""
    groups: dict[object, list[Entry]] = {}
    for entry in entries:
        own = entry.point.folder if entry.state == "failed" else ""  # each has a log of its own
        groups.setdefault((entry.point.layout, entry.state, entry.detail, own), []).append(entry)
    return [(group[0], _repeats(sorted(entry.point.repeat for entry in group))) for group in groups.values()]


def _repeats(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"repeat {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"repeats {numbers[0]} to {numbers[-1]}"
    return f"repeats {', '.join(map(str, numbers))}"
