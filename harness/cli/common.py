"""Options and arguments that several commands have, each declared once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]


def _folder(name: str, default: str | None, text: str, **settings: Any) -> Option:
    path = Path(default) if default else None
    kind = click.Path(path_type=Path)
    return click.option(name, type=kind, default=path, show_default=bool(default), help=text, **settings)


results_option = _folder("--results", "results", "Folder of records.")
reports_option = _folder("--reports", "reports", "Folder of reports.")
baselines_option = _folder("--baselines", "results/baselines", "Folder of baselines.")
data_dir_option = _folder("--data-dir", None, "Folder with the original files.", envvar="HARNESS_DATA_DIR")
network_option = click.option(
    "--network", help="ALPHA,BETA or a probe.json, for predictions [default: this machine's newest probe]."
)
budget_option = click.option(
    "--budget", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Minutes to measure."
)
sweep_argument = click.argument("sweep", required=False)


def with_options(options: Sequence[Option]) -> Callable[[Command], Command]:
    """Return a decorator that adds `options` to a click command, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
