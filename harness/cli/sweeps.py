"""Commands about sweeps that are there: status, collect, cancel, retry and report."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import UserError
from harness.cli.answer import answering
from harness.cli.bundle import redrawn
from harness.cli.common import reports_option, results_option, style_option, sweep_argument
from harness.cli.options import approval, cost_options
from harness.cli.reproduce import whence
from harness.cli.select import find_sweep, find_sweeps
from harness.report.answer import Answer
from harness.schema.record import RUN_FILE

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
@click.option("--wait", is_flag=True, help="Wait until all of it has ended.")
@results_option
@reports_option
@answering
def collect(sweep: str | None, wait: bool, results: Path, reports: Path) -> Answer:
    """Take in the queued launches of SWEEP (the newest if none is named) that have ended, and draw the report."""
    from harness.cli.sweep import sweep_answer
    from harness.sweep.collect import collect

    folder = find_sweep(sweep, results)
    found = collect(folder, wait=wait)
    said = f"{folder.name}: {found.ended} ended, {found.failed} of them failed, {found.left} still to come"
    answer = Answer(sentence=said)
    if any(folder.glob(f"*/{RUN_FILE}")):
        click.echo(said)
        answer = sweep_answer(folder, reports)
    if found.failed:
        problem = f"{found.failed} launches failed: see `harness status {folder.name}`, then `harness retry`"
        return replace(answer, problem=problem)
    return answer


@click.command()
@sweep_argument
@results_option
def cancel(sweep: str | None, results: Path) -> None:
    """End the queued and running launches of SWEEP (the newest if none is named); finished records are kept."""
    from harness.sweep.collect import cancel

    folder = find_sweep(sweep, results)
    found = cancel(folder)
    waiting = f"{found.left} launches; the command that waits for them takes them in"
    click.echo(f"{folder.name}: cancelled {waiting if found.left else f'{found.ended} launches'}")


@click.command()
@sweep_argument
@results_option
@reports_option
@cost_options
@answering
def retry(sweep: str | None, results: Path, reports: Path, max_node_hours: float, yes: bool) -> Answer:
    """Launch again what failed, is missing or has invalid times of SWEEP (the newest if none is named)."""
    from harness.cli.sweep import run_and_answer
    from harness.sweep.collect import retry
    from harness.sweep.store import read_study

    folder = find_sweep(sweep, results)
    name = read_study(folder).sweep.name
    if folder.resolve().name != name:
        raise UserError(f"'{folder}' is the folder of sweep {name}: give it that name again")
    approve = approval({"max_node_hours": max_node_hours, "yes": yes})
    return run_and_answer(lambda: retry(folder, results=folder.parent, approve=approve), folder, reports)


@click.command()
@click.argument("sweep", nargs=-1, metavar="[SWEEP]...")
@results_option
@reports_option
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
        from harness.report.policies_page import write_policies

        return Answer(sentence="", page=write_policies(folders, reports, target))
    from harness.report.sweep_page import write_report

    pages = []
    for folder in folders:
        pages.append(write_report(folder, reports, base=base, style=style))
        click.echo(pages[-1])
    return Answer(sentence="", data={"pages": pages})


def _print(status: "Status", folder: Path, *, whole: bool) -> None:
    """Print a sweep: one line if it is done and not asked for, else every launch, those that are alike in one line."""
    from harness.schema.sweep import LOGS
    from harness.sweep.eta import layout_words
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
        click.echo(f"  {entry.state:8} {layout_words(entry.point.layout)}, {repeats}{detail}")
        if entry.state == "failed":
            for line in entry.tail.splitlines()[-_TAIL_LINES:]:
                click.echo(f"           | {line}")
            click.echo(f"           log: {folder / LOGS / entry.point.folder}.log")
    for skipped in status.skipped:
        click.echo(f"  skipped  {layout_words(skipped.layout)}: {skipped.reason}")
    if status.count("invalid") and not at_work:
        click.echo(f"  `harness retry {status.name}` measures invalid launches again")
    if not status.active and (status.count("ended") or status.count("queued") or status.count("running")):
        click.echo(f"  no command waits for these launches: `harness collect {status.name}` takes in what has ended")


def _alike(entries: "Iterable[LaunchStatus]") -> "list[tuple[LaunchStatus, str]]":
    """Return one entry for all of the same layout and state with the same to tell, and which launches in words."""
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
