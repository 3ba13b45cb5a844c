"""The switches of a run, the same for `harness run` and for one rank of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--sync",
        default="gradients",
        show_default=True,
        envvar="HARNESS_SYNC",
        help="gradients, weights:K (every K steps) or weights:epoch.",
    ),
    click.option(
        "--batch",
        default="per-rank",
        show_default=True,
        envvar="HARNESS_BATCH",
        help="The script's batch size is per-rank, or global: divided over the ranks.",
    ),
    click.option("--verify", type=int, default=0, help="Compare weights every N epochs, not only at the end."),
    click.option(
        "--hang-timeout",
        type=float,
        default=120.0,
        show_default=True,
        help="Seconds to wait for a rank before the run ends with a report; 0 for ever.",
    ),
    click.option(
        "--logs",
        type=click.Path(path_type=Path),
        default=Path("harness-logs"),
        show_default=True,
        help="Folder for what ranks above 0 print.",
    ),
    click.option("--record", type=click.Path(path_type=Path), help="Write the run's record into this new folder."),
    click.argument("script", type=click.Path(path_type=Path)),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
)


def run_options(command: Command) -> Command:
    """Add the switches, SCRIPT and its arguments to a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
