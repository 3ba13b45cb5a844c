"""The sweep that a command is about."""

from pathlib import Path

import click

from harness.base.errors import UserError

results_option = click.option(
    "--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True, help="Folder of records."
)


def one_sweep(results: Path, name: str | None) -> Path:
    """Return the folder of the sweep in `results` whose name begins with `name`, the newest one without a name.

    Raises:
        UserError: there is none, or the name fits several.
    """
    from harness.sweep.status import find_sweeps

    found = find_sweeps(results, Path(name).name if name else None)
    if name and len(found) > 1:
        raise UserError(f"SWEEP={name} fits {len(found)} sweeps: {', '.join(folder.name for folder in found)}")
    return found[0]
