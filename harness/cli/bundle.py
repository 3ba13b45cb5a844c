"""``harness bundle``: one archive with all that a stranger needs to check and repeat sweeps; and its check."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import UserError
from harness.cli.answering import answering
from harness.cli.common import reports_option, results_option
from harness.cli.select import find_sweep
from harness.report.answer import Answer, Table

if TYPE_CHECKING:
    from harness.schema.sweep import Sweep

WRITE = "write"


class _WriteUnlessNamed(click.Group):
    """A group whose first word is a sweep's name, unless it is one of its commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = args and args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if named else [WRITE, *args])


@click.group(name="bundle", cls=_WriteUnlessNamed)
def bundle() -> None:
    """Put sweeps into one archive for strangers, or check one: `harness bundle SWEEP...`."""


@bundle.command(name=WRITE)
@click.argument("sweep", nargs=-1, metavar="[SWEEP]...")
@click.option("--output", type=click.Path(path_type=Path), help="The archive, .tar.gz [default: in REPORTS/bundles].")
@click.option("--offline", is_flag=True, help="With wheels of all that is needed: about 0.9 GB.")
@results_option
@reports_option
@answering
def write(sweep: tuple[str, ...], output: Path | None, offline: bool, results: Path, reports: Path) -> Answer:
    """Write records, samples, figures, scripts, source and an appendix of each SWEEP (the newest) to one archive."""
    from harness.bundle.write_bundle import write_bundle
    from harness.schema.sweep import digest

    folders = [find_sweep(name, results) for name in sweep or (None,)]
    names = [folder.resolve().name for folder in folders]
    stem = names[0] if len(names) == 1 else f"{len(names)}-sweeps-{digest(sorted(names))[:8]}"
    target = output or reports / "bundles" / f"{stem}.tar.gz"
    if not target.name.endswith(".tar.gz"):
        raise UserError(f"OUTPUT={target} does not end in .tar.gz: name the archive so")
    if offline:
        click.echo("fetching, trying and packing wheels of every package: about 0.9 GB, and meanwhile 3 GB in TMPDIR")
    made = write_bundle(folders, target, _command, offline=offline)
    size = made.stat().st_size / 1e6
    said = f"{len(names)} {'sweep' if len(names) == 1 else 'sweeps'} in one archive of {size:.1f} MB; "
    return Answer(sentence=f"{said}`harness bundle verify` checks it on any machine.", page=made)


@bundle.command(name="verify")
@click.argument("file", type=click.Path(path_type=Path))
@answering
def verify(file: Path) -> Answer:
    """Check all of the bundle FILE: its files, its records, its description. Exit code 1: something is wrong."""
    from harness.bundle.archive import verify_bundle

    checks = verify_bundle(file)
    bad = [check for check in checks if not check.good]
    return Answer(
        sentence=f"{file.name} is {'damaged: ' + bad[0].found if bad else 'whole'}.",
        table=Table(
            title="",
            headings=("Checked", "Right", "Found"),
            rows=[(check.what, "yes" if check.good else "no", check.found) for check in checks],
        ),
        data={"checks": checks},
        code=1 if bad else 0,
    )


def redrawn(bundled: Path, reports: Path) -> Answer:
    """Draw the pages of a bundle into ``REPORTS/<its name>`` and say which files differ from it."""
    from harness.bundle.archive import drawn_with, redraw

    found = redraw(bundled, reports / bundled.name.removesuffix(".tar.gz"))
    here, said = drawn_with(), f"{len(found.files) - len(found.different)} of {len(found.files)} files are the bundle's"
    why = f"; drawn there with {found.drawn_with}, here with {here}" if here != found.drawn_with else ""
    return Answer(
        sentence=f"{said} byte for byte{why if found.different else ''}.",
        table=Table(title="", headings=("Different",), rows=[(name,) for name in found.different]),
        data={"files": len(found.files), "different": found.different, "pages": found.pages},
        page=found.pages[0],
        code=1 if found.different else 0,
    )


def _command(sweep: "Sweep") -> str:
    """Return the commands of the harness, without make, that give the launches of `sweep`."""
    from harness.cli.make import command_line
    from harness.schema.presets import sweep_command

    lines = []
    for line in sweep_command(sweep).splitlines():
        pairs = (word.partition("=") for word in shlex.split(line)[2:])
        given = {name: value.replace("$$", "$") for name, _, value in pairs}
        lines.append(shlex.join(["harness", *command_line("sweep", given)]))
    return "\n".join(lines)
