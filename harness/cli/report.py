"""``harness report``: draw the report of a sweep from its records."""

from pathlib import Path

import click

from harness.base.errors import UserError, unknown
from harness.schema.sweep import sweep_folders


@click.command(name="report")
@click.argument("sweep", nargs=-1, metavar="[SWEEP]...")
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option("--reports", type=click.Path(path_type=Path), default=Path("reports"), show_default=True)
@click.option("--base", type=click.IntRange(min=1), help="Rank count that ratios are over [default: the smallest].")
@click.option("--together", is_flag=True, help="One page that sets the SWEEPs side by side, such as sync policies.")
@click.option("--target", type=click.FloatRange(0, 1), help="With --together: test accuracy to reach, such as 0.97.")
def command(
    sweep: tuple[str, ...], results: Path, reports: Path, base: int | None, together: bool, target: float | None
) -> None:
    """Draw the report of each SWEEP, a folder or its name in the results; the newest if none is given."""
    folders = [find_sweep(name, results) for name in sweep] or [newest_sweep(results)]
    if together:
        from harness.report.policies_page import write_policies

        click.echo(write_policies(folders, reports, target))
        return

    from harness.report.sweep_page import write_report

    for folder in folders:
        click.echo(write_report(folder, reports, base=base))


def find_sweep(name: str, results: Path) -> Path:
    """Return the folder called `name`, or the one of that name in `results`.

    Raises:
        UserError: there is neither; the nearest name is told.
    """
    for folder in (Path(name), results / name):
        if folder.is_dir():
            return folder
    known = [folder.name for folder in sweep_folders(results)]
    if not known:
        raise UserError(f"SWEEP '{name}' is no folder and '{results}' holds no sweep: run `harness sweep` first")
    raise unknown("SWEEP", name, known)


def newest_sweep(results: Path) -> Path:
    """Return the sweep in `results` that was written to last.

    Raises:
        UserError: there is none.
    """
    found = sweep_folders(results)
    if not found:
        raise UserError(f"results '{results}' holds no sweep: run `harness sweep` first")
    return found[0]
