"""The command line. ``commands.tsv`` lists the commands; a command's module is imported only when it is called.

In: a command line.
Out: one frozen dataclass of options for a command, the calls that it stands for, an answer printed.
Never: decides a verdict, or imports a command's module before it is called.
"""

import importlib
import itertools
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from harness.base import __version__

MAKE = "make"  # what the Makefile calls; not for people


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandEntry:
    """A command in the list: the task below which it stands, and one line for --help and `make help`."""

    task: str
    summary: str


def _read_commands() -> dict[str, CommandEntry]:
    """Read the list of commands, which the Makefile reads too: task, name and summary with tabs between."""
    commands = {}
    for line in Path(__file__).with_name("commands.tsv").read_text(encoding="utf-8").splitlines():
        task, name, summary = line.split("\t")
        commands[name] = CommandEntry(task=task, summary=summary)
    return commands


COMMANDS = _read_commands()


class LazyGroup(click.Group):
    """A group that imports a command's module, ``command_NAME``, when it is called, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in (*COMMANDS, MAKE):
            return None
        module = importlib.import_module(f"harness.cli.command_{cmd_name}")
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        items = [CompletionItem(name, help=COMMANDS[name].summary) for name in names]
        return items or click.Command.shell_complete(self, ctx, incomplete)  # options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for task, entries in itertools.groupby(COMMANDS.items(), key=lambda item: item[1].task):
            with formatter.section(task.capitalize()):
                formatter.write_dl([(name, entry.summary) for name, entry in entries], col_max=12)


def show_versions(context: click.Context, option: click.Parameter, asked: bool) -> None:
    """Print the versions of the harness and of what it trains with, and end: the callback of ``--version``.

    TensorFlow and MPI are not imported.
    """
    if not asked:
        return
    from harness.base.provenance import package_version
    from harness.cli.terminal import echo
    from harness.comm.mpi_library import mpi_title

    echo(f"harness {__version__}")
    echo(f"TensorFlow {package_version('tensorflow') or 'not installed'}")
    echo(f"Keras {package_version('keras') or 'not installed'}")
    echo(f"MPI: {mpi_title() or 'none'}")
    context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_versions, help="Show versions."
)
def main() -> None:
    """How well does synchronous TensorFlow training scale on this machine?"""
