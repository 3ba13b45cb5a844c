"""Commands about sweeps that are there: status, cancel and report."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.answering import answering, told
from harness.cli.bundle import redrawn, whence
from harness.cli.common import folder_options, results_option, style_option, sweep_argument
from harness.cli.select import find_sweep, find_sweeps
from harness.report.answer import Answer, plain

if TYPE_CHECKING:
    from harness.sweep.status import LaunchStatus, Status


_TAIL_LINES = 3


@click.command()
@sweep_argument
@results_option
@answering
def status(sweep: str | None, results: Path) -> Answer:
    """Tell what is done, running, failed, missing and skipped of every sweep whose name begins with SWEEP."""
    from harness.sweep.status import read_status

    found = []
    for folder in find_sweeps(sweep, results):
        found.append(read_status(folder))
        _print(found[-1], folder, whole=sweep is not None)
    counts = {one.name: Counter(entry.state for entry in one.entries) for one in found}
    return Answer(sentence="", data={"counts": counts, "sweeps": found})


@click.command()
@sweep_argument
@results_option
def cancel(sweep: str | None, results: Path) -> None:
    """End the queued and running launches of SWEEP (the newest if none is named); finished records are kept."""
    from harness.sweep import execute

    folder = find_sweep(sweep, results)
    launches, waited_for = execute.cancel(folder)
    more = "; the command that waits for them takes them in" if waited_for else ""
    click.echo(f"{folder.name}: cancelled {launches} launches{more}")


@click.command()
@click.argument("sweep", nargs=-1, metavar="[SWEEP]...")
@folder_options
@click.option("--base", type=click.IntRange(min=1), help="Rank count that ratios are over [default: the smallest].")
@style_option
@click.option("--together", is_flag=True, help="One page that sets the SWEEPs side by side, such as sync policies.")
@click.option("--target", type=click.FloatRange(0, 1), help="With --together: test accuracy to reach, such as 0.97.")
@click.option("--from", "bundled", type=click.Path(path_type=Path), help="Draw a bundle's pages again and compare.")
@click.option(
    "--whence", "figure", type=click.Path(path_type=Path), help="Name the launches that a figure or table shows."
)
@answering
def report(
    sweep: tuple[str, ...],
    results: Path,
    reports: Path,
    base: int | None,
    style: str,
    together: bool,
    target: float | None,
    bundled: Path | None,
    figure: Path | None,
) -> Answer:
    """Draw the report of each SWEEP from its records, of the newest if none is named.

    With --from it does nothing else: exit code 1 if a file is not the bundle's byte for byte. With --whence it names
    the launches that an SVG, PNG, PDF or CSV file of a report shows, their sweep and the commands, also where the file
    was moved: exit code 1 if some are not in the results, or were replaced.
    """
    if bundled is not None:
        return redrawn(bundled, reports)
    if figure is not None:
        return whence(figure, results, reports)
    folders = [find_sweep(name, results) for name in sweep or (None,)]
    if together:
        from harness.report.policies_page import policies_answer
        from harness.report.publish import write_page

        return write_page(policies_answer(folders, reports, target), reports, results)
    from harness.report.sweep_page import report_sweep

    answers = [report_sweep(folder, reports, base=base, style=style) for folder in folders]
    for answer in answers[:-1]:
        warnings = "".join(f"{banner.kind}: {banner.text}\n" for banner in answer.banners)
        click.echo(f"{plain(told(warnings + answer.sentence))}\n{answer.page}\n")
    pages = [answer.page for answer in answers]
    return replace(answers[-1], data={**answers[-1].data, "pages": pages}, code=0)


def _print(status: "Status", folder: Path, *, whole: bool) -> None:
    """Print a sweep: one line if it is done and not asked for, else every launch, equal ones in one line."""
    from harness.schema.sweep import LOGS
    from harness.sweep.plan import format_seconds

    states = ("done", "invalid", "queued", "running", "ended", "unknown", "failed", "missing")
    counts = ", ".join(f"{status.count(state)} {state}" for state in states if status.count(state))
    counts += f" ({status.other_code} more ran a different code version)" if status.other_code else ""
    left = f", about {format_seconds(status.left)} left" if status.left is not None else ""
    at_work = status.active or status.count("queued", "running")
    click.echo(f"{status.name}: {counts}{left}{'' if at_work else ' (nothing runs now)'}")
    if not whole and not at_work and status.count("done") == len(status.entries) and not status.skipped:
        return
    for entry, repeats in _group_entries(status.entries):
        detail = f": {entry.detail}" if entry.detail else ""
        click.echo(f"  {entry.state:8} {entry.point.layout}, {repeats}{detail}")
        if entry.state == "failed":
            for line in entry.tail.splitlines()[-_TAIL_LINES:]:
                click.echo(f"           | {line}")
            click.echo(f"           log: {folder / LOGS / entry.point.folder}.log")
    for skipped in status.skipped:
        click.echo(f"  skipped  {skipped.layout}: {skipped.reason}")
    if status.active or not status.command:
        return
    if status.count("ended", "queued", "running"):
        click.echo("  no command waits for these launches; this one takes them in and launches what is missing:")
    elif status.to_launch:
        click.echo("  this command launches again what failed, is missing or has no valid times:")
    else:
        return
    for line in status.command.splitlines():
        click.echo(f"    {told(f'`{line}`').strip('`')}")


def _group_entries(entries: "Iterable[LaunchStatus]") -> "list[tuple[LaunchStatus, str]]":
    """Return one entry for all of the same layout and state with the same detail, and which launches in words."""
    groups: dict[object, list[LaunchStatus]] = {}
    for entry in entries:
        own = entry.point.folder if entry.state == "failed" else ""  # each has a log of its own
        groups.setdefault((entry.point.layout, entry.state, entry.detail, own), []).append(entry)
    return [(group[0], _numbers(sorted(entry.point.repeat + 1 for entry in group))) for group in groups.values()]


def _numbers(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"launch {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"launches {numbers[0]} to {numbers[-1]}"
    return f"launches {', '.join(map(str, numbers))}"
