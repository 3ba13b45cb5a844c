"""``harness status``: how far a sweep is, from any terminal."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.cli.answer_output import answering
from harness.cli.common_options import context_options, sweep_argument
from harness.cli.sweep_argument import find_sweeps
from harness.cli.terminal import echo
from harness.report.answer import Answer
from harness.schema.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from harness.sweep.status import LaunchStatus, Status

_TAIL_LINES = 3  # of the log of a failed launch


@click.command(name="status")
@sweep_argument
@context_options("results")
@answering
def status_command(sweep: str | None, context: Context) -> Answer:
    """Tell what is done, running, failed, missing and skipped of every sweep whose name begins with SWEEP."""
    statuses = []
    counts = {}
    for folder in find_sweeps(sweep, context.results):
        status = _status_by_the_page(folder)
        _print(status, folder, in_full=sweep is not None)
        statuses.append(status)
        counts[status.name] = Counter(entry.state for entry in status.entries)
    return Answer(sentence="", data={"counts": counts, "sweeps": statuses})


def _status_by_the_page(folder: Path) -> "Status":
    """Return the status of the sweep in `folder`, in which launches are invalid that are so on its page.

    That a launch has no times in turns, or that a script trained otherwise than on one rank, shows beside the sweep's
    other launches only: whoever reads all of them for a page decides it.
    """
    from harness.sweep.status import read_status

    status = read_status(folder)
    if not (status.judged_together and status.count("done")):
        return status
    from harness.analysis.read_results import load_sweep

    return status.with_invalid({run.point.folder: run.invalid for run in load_sweep(folder).runs})


def _print(status: "Status", folder: Path, *, in_full: bool) -> None:
    """Print a sweep: one line if it is done or only planned and not asked for, else every launch, equal ones in one."""
    from harness.sweep.plan import format_seconds

    states = ("done", "invalid", "queued", "running", "ended", "unknown", "failed", "missing")
    counts = ", ".join(f"{status.count(state)} {state}" for state in states if status.count(state))
    counts += f" ({status.other_code} more ran a different code version)" if status.other_code else ""
    if status.blocks and status.at_work:
        counts += f"; turn blocks made: {status.blocks}"
    left = f", about {format_seconds(status.left)} left" if status.left is not None else ""
    is_only_planned = not status.at_work and status.count("missing") == len(status.entries)
    at_rest = " (nothing was launched)" if is_only_planned else " (nothing runs now)"
    echo(f"{status.name}: {counts}{left}{'' if status.at_work else at_rest}")
    for job in status.jobs:
        progress = f"; {job.blocks} blocks made of {job.least} to {job.most}" if job.most else ""
        echo(f"  {job.state:8} {job.detail}{progress}")
    is_done = not status.at_work and status.count("done") == len(status.entries) and not status.skipped
    if not in_full and (is_done or is_only_planned):
        return
    for entry, repeats in _group_entries(status.entries):
        detail = f": {entry.detail}" if entry.detail else ""
        echo(f"  {entry.state:8} {entry.point.layout}, {repeats}{detail}")
        if entry.state == "failed":
            for line in entry.tail.splitlines()[-_TAIL_LINES:]:
                echo(f"           | {line}")
            echo(f"           log: {SweepFolder(folder).log(entry.point.folder)}")
    for skipped in status.skipped:
        echo(f"  skipped  {skipped.layout}: {skipped.reason}")
    if status.active or not status.command:
        return
    if status.at_work or status.count("ended"):
        echo("  no command waits for these launches; this one takes them in and launches what is missing:")
    elif status.to_launch:
        echo("  this command launches again what failed, is missing or has no valid times:")
    else:
        return
    for line in status.command.splitlines():
        echo(f"    {line}")


def _group_entries(entries: "Iterable[LaunchStatus]") -> "list[tuple[LaunchStatus, str]]":
    """Return one entry for all of the same layout and state with the same detail, and which launches in words."""
    groups: dict[object, list[LaunchStatus]] = {}
    for entry in entries:
        log = entry.point.folder if entry.state == "failed" else ""  # each of them has a log
        groups.setdefault((entry.point.layout, entry.state, entry.detail, log), []).append(entry)
    return [(group[0], _launch_numbers(group)) for group in groups.values()]


def _launch_numbers(entries: "Iterable[LaunchStatus]") -> str:
    numbers = sorted(entry.point.repeat + 1 for entry in entries)
    if len(numbers) == 1:
        return f"launch {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"launches {numbers[0]} to {numbers[-1]}"
    return f"launches {', '.join(map(str, numbers))}"
