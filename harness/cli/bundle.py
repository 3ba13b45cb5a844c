"""``harness bundle`` and ``harness reproduce``; what ``harness report`` says of a bundle and of a figure's launches."""

from pathlib import Path
from typing import Any

import click

from harness.base.errors import UserError
from harness.cli.common import GroupedCommand, answering, data_dir_option, folder_options, results_option
from harness.cli.options import batch_options, build_submission, find_recorded, find_sweep
from harness.report.answer import Answer, Table
from harness.schema.sweep import digest

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
@folder_options
@answering
def write(sweep: tuple[str, ...], output: Path | None, offline: bool, results: Path, reports: Path) -> Answer:
    """Write records, samples, figures, scripts, source and an appendix of each SWEEP (the newest) to one archive."""
    from harness.bundle.write_bundle import write_bundle

    folders = [find_sweep(name, results) for name in sweep or (None,)]
    names = [folder.resolve().name for folder in folders]
    stem = names[0] if len(names) == 1 else f"{len(names)}-sweeps-{digest(sorted(names))[:8]}"
    target = output or reports / "bundles" / f"{stem}.tar.gz"
    if not target.name.endswith(".tar.gz"):
        raise UserError(f"OUTPUT={target} does not end in .tar.gz: name the archive so")
    if offline:
        click.echo("fetching, trying and packing wheels of every package: about 0.9 GB, and meanwhile 3 GB in TMPDIR")
    made = write_bundle(folders, target, offline=offline)
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


@click.command(cls=GroupedCommand)
@click.argument("name", metavar="LAUNCH|SWEEP|FILE")
@click.option(
    "--same-layout/--here", default=True, show_default=True, help="On the recorded ranks, or on what fits here."
)
@results_option
@data_dir_option
@batch_options
@answering
def reproduce(name: str, same_layout: bool, results: Path, data_dir: Path | None, **options: Any) -> Answer:
    """Repeat LAUNCH from its record, of a SWEEP one launch of each layout, and compare.

    Only the record is used: settings, seed, layout and data are the recorded ones. What it depends on (source,
    versions, machine) is compared first. Weights must be the same bit for bit where all that decides them is the same,
    the loss must be within 2 %, the epoch's time within 95 % of repetitions on the same machine. Exit code 0: all
    that could be compared is reproduced; 1: something is not; 3: nothing could be compared.
    """
    from harness.bundle import repetition

    folder = find_recorded(name, results)
    submission, _ = build_submission(options)
    lines = []
    for known in repetition.recorded(folder):
        old = known.run
        again = repetition.plan_repetition(old, data_dir, here=not same_layout)
        new = repetition.repeat_launch(again, data_dir=data_dir, results=results, submission=submission)
        for line in repetition.environment(old, new):
            click.echo(f"{line.quantity}: {line.recorded} then, {line.now} now ({line.remark})")
        lines += [(str(old.point.layout.ranks), line) for line in repetition.results_of(old, new, known.same_layout)]
    found = [line for _, line in lines]
    verdicts = {line.verdict for line in found}
    code = 1 if repetition.DIFFERENT in verdicts else 3 if verdicts == {repetition.NOT_COMPARED} else 0
    said = [f"{line.verdict}: {line.remark}" if line.remark else line.verdict for line in found]
    rows = [
        (ranks, one.quantity, one.recorded, one.now, judged) for (ranks, one), judged in zip(lines, said, strict=True)
    ]
    return Answer(
        sentence=repetition.overall_verdict(found),
        table=Table(title="", headings=("Ranks", "Quantity", "Recorded", "Now", "Verdict"), rows=rows),
        data={"lines": found},
        code=code,
    )


def whence(file: Path, results: Path, reports: Path) -> Answer:
    """Return the launches that `file` of a report shows, their sweep and the commands; code 1: some are not there.

    Raises:
        UserError: it is not a file of a report, or cannot be read.
    """
    from harness.analysis.numbers import plural
    from harness.report.publish import find_origin, launches_in, launches_of

    origin = find_origin(file, reports)
    if origin is None:
        raise UserError(f"'{file}' does not say what it was made of: not an SVG, PNG, PDF or CSV file of a report")
    there = launches_in(results)
    shown = launches_of(origin)
    rows = [(source.sweep, mark, there.get(started, "not there")) for source, mark, started in shown]
    missing = sum(started not in there for _, _, started in shown)
    click.echo(f"drawn by: {origin.command or 'a command that is not recorded'} (harness {origin.harness})")
    for command in dict.fromkeys(line for source in origin.sources for line in source.command.splitlines()):
        click.echo(f"launched by: {command}")
    sweeps = ", ".join(dict.fromkeys(source.sweep for source in origin.sources))
    of = f"{plural(len(shown), 'launch')} of {sweeps}" if shown else "no launch of a sweep"
    where = f"{missing} of them not" if missing else "all of them"
    return Answer(
        sentence=f"{file.name} shows {of}" + (f", {where} in '{results}'." if shown else "."),
        table=Table(title="", headings=("Sweep", "Launch", "In the results"), rows=rows),
        data={"origin": origin, "missing": missing},
        code=1 if missing else 0,
    )
