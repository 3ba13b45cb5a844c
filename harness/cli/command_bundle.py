"""``harness bundle``: sweeps in one archive that a stranger can check and repeat."""

from pathlib import Path

import click

from harness.base.command_context import Context
from harness.base.current_user import UserPath
from harness.base.errors import UserError
from harness.base.exit_codes import FAILED
from harness.base.removal import check_output, make_place
from harness.base.setting_names import setting
from harness.cli.answer_output import answering
from harness.cli.common_options import context_options
from harness.cli.sweep_argument import find_sweep
from harness.report.answer import Answer, Table
from harness.schema.point import digest

WRITE = "write"


class _WriteUnlessNamed(click.Group):
    """A group whose first word is a sweep's name, unless it is one of its commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names_command = args and args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if names_command else [WRITE, *args])


@click.group(name="bundle", cls=_WriteUnlessNamed)
def bundle_command() -> None:
    """Put sweeps into one archive for strangers, or check one: `harness bundle SWEEP...`."""


@bundle_command.command(name=WRITE)
@click.argument("sweep", nargs=-1, metavar="[SWEEP]...")
@click.option(
    "--allow",
    multiple=True,
    metavar="FILE:NAME",
    help="What looks like a secret in a file of the bundle and is none, as the refusal names it; repeatable.",
)
@click.option("-o", "--output", type=UserPath(), help="The archive, .tar.gz [default: in REPORTS/bundles].")
@context_options("results", "reports")
@answering
def write_command(sweep: tuple[str, ...], allow: tuple[str, ...], output: Path | None, context: Context) -> Answer:
    """Write records, samples, figures, scripts and source of each SWEEP (the newest) to one archive.

    What looks like a secret in a record, a log or a script is refused, and so are links.
    """
    from harness.bundle.write_bundle import write_bundle

    folders = [find_sweep(name, context.results) for name in sweep or (None,)]
    names = [folder.resolve().name for folder in folders]
    stem = names[0] if len(names) == 1 else f"{len(names)}-sweeps-{digest(sorted(names))[:8]}"
    target = output or context.reports / "bundles" / f"{stem}.tar.gz"
    if not target.name.endswith(".tar.gz"):
        raise UserError(f"{setting('output', target)} does not end in .tar.gz: name the archive so")
    if output:
        check_output(output, "--output")
    archive = write_bundle(folders, target, allow)
    if not output:
        make_place(context.reports, "--reports", is_ours=True)  # it was new, empty or ours before
    sweeps = "sweep" if len(names) == 1 else "sweeps"
    size = archive.stat().st_size / 1e6
    return Answer(
        sentence=f"{len(names)} {sweeps} in one archive of {size:.1f} MB; `harness bundle verify` checks it on any "
        "machine.",
        page=archive,
    )


@bundle_command.command(name="verify")
@click.argument("file", type=UserPath())
@answering
def verify_bundle_command(file: Path) -> Answer:
    """Check all of the bundle FILE: its files, its records, its description. Exit code 1: something is wrong."""
    from harness.bundle.verification import verify_bundle

    checks = verify_bundle(file)
    bad = [check for check in checks if not check.good]
    return Answer(
        sentence=f"{file.name} is {'damaged: ' + bad[0].finding if bad else 'whole'}.",
        table=Table(
            title="",
            headings=("Checked", "Right", "Found"),
            rows=[(check.what, "yes" if check.good else "no", check.finding) for check in checks],
        ),
        data={"checks": [{"what": check.what, "found": check.finding, "good": check.good} for check in checks]},
        code=FAILED if bad else 0,
    )


@bundle_command.command(name="redraw")
@click.argument("file", type=UserPath())
@context_options("reports")
@answering
def redraw_command(file: Path, context: Context) -> Answer:
    """Draw the pages of the bundle FILE again and compare. Exit code 1: a table or a summary has other numbers."""
    from harness.bundle.archive import drawn_with
    from harness.bundle.write_bundle import redraw_bundle

    redrawn = redraw_bundle(file, context.reports / file.name.removesuffix(".tar.gz"))
    make_place(context.reports, "--reports", is_ours=True)  # it was new, empty or ours before
    same = len(redrawn.files) - len(redrawn.different)
    sentence = f"{same} of {len(redrawn.files)} tables and summaries have the bundle's numbers"
    if redrawn.different and drawn_with() != redrawn.drawn_with:
        sentence += f"; drawn there with {redrawn.drawn_with}, here with {drawn_with()}"
    return Answer(
        sentence=f"{sentence}.",
        table=Table(title="", headings=("Different",), rows=[(name,) for name in redrawn.different]),
        data={"files": len(redrawn.files), "different": redrawn.different, "pages": redrawn.pages},
        page=redrawn.pages[0],
        code=FAILED if redrawn.different else 0,
    )
