"""`harness doctor`: is this machine ready, and if not, what mends it?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.doctor.machine import Check


_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), envvar="HARNESS_DATA_DIR", help="Folder with the original files."
)
@click.pass_context
def command(context: click.Context, as_json: bool, data_dir: Path | None) -> None:
    """Tell which MPI, TensorFlow, cores, memory, compiler and GPUs are in use, and what is wrong with them.

    The exit code is 0 when everything that runs need works, else 1.
    """
    from harness.base.processes import interruptible
    from harness.doctor.diagnose import diagnose, exit_code
    from harness.schema.record import encode

    checks = []
    with interruptible():
        for check in diagnose(data_dir):
            checks.append(check)
            if not as_json:
                _show(check)
    if as_json:
        click.echo(encode(checks), nl=False)
    context.exit(exit_code(checks))


def _show(check: "Check") -> None:
    status = click.style(f"{check.status:8}", fg=_COLOURS[check.status])
    click.echo(f"{status} {check.topic:14} {check.found}")
    if check.fix:
        click.echo(f"{'':8} {'':14} fix: {check.fix}")
