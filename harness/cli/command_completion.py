"""``harness completion``: what completes commands and options in a shell."""

import click
from click.shell_completion import get_completion_class

from harness.cli import main
from harness.cli.terminal import echo

_VARIABLE = "_HARNESS_COMPLETE"  # by which click's script asks `harness` for completions
_SHELLS = ("bash", "zsh", "fish")


@click.command(name="completion")
@click.argument("name", metavar="|".join(_SHELLS), type=click.Choice(_SHELLS))
def completion_command(name: str) -> None:
    """Print the script that completes commands and options of `harness` in a shell.

    For bash, in ~/.bashrc: eval "$(harness completion bash)". For fish: harness completion fish >
    ~/.config/fish/completions/harness.fish.
    """
    kind = get_completion_class(name)
    assert kind is not None
    echo(kind(main, {}, "harness", _VARIABLE).source())
