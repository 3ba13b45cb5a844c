"""``harness explain``: why a sweep does not scale, by cause; ``harness trace``: a launch for a trace viewer."""

import shlex
from dataclasses import replace
from pathlib import Path

import click

from harness.base.errors import RunError, UserError
from harness.base.files import write_atomic
from harness.cli import common
from harness.cli.options import parse_counts
from harness.cli.select import find_recorded, find_sweep
from harness.report.answer import Answer, Banner
from harness.schema.record import RUN_FILE, read_run

_MOST_POINTS, _MOST_FINDINGS = 4, 5  # in a terminal


@click.command()
@common.sweep_argument
@click.option("--base", type=click.IntRange(min=1), help="Rank count that ratios are over [default: the smallest].")
@click.option(
    "--prove", is_flag=True, help="Train counterfactuals, which take one cause away each, in turns, here and now."
)
@common.defaulted(
    "--repeats",
    type=click.IntRange(1, 100),
    default=6,
    help="With --prove: blocks, which have a launch of each; 3 give an interval.",
)
@common.style_option
@common.folder_options
@common.data_dir_option
@common.answering
def explain(
    sweep: str | None,
    base: int | None,
    prove: bool,
    repeats: int,
    results: Path,
    data_dir: Path | None,
    **_: object,
) -> Answer:
    """Say why SWEEP (the newest if none is named) does not scale.

    Prints POP's tree of efficiencies for every point and the overheads of the largest one: what it takes beyond the
    ideal time, by cause. With --prove the costliest causes are taken away one at a time in launches that train in turns
    with the launch as it is; what each must give is printed before the first, beside what it gave. The last line is the
    page's path.
    """
    from harness.report.explain_page import explain_answer, proof_table, tree_table
    from harness.why.explanation import explain_sweep
    from harness.why.known_causes import diagnose_sweep
    from harness.why.proof import newest_proofs, prove_overheads

    folder = find_sweep(sweep, results)
    found = explain_sweep(folder, base)
    for sentence in found.loaded.damaged:
        click.echo(f"left out: {sentence}", err=True)
    common.print_table(*tree_table(found.efficiencies, most=_MOST_POINTS))
    click.echo(found.network)
    findings = diagnose_sweep(found.loaded)
    for finding in findings[:_MOST_FINDINGS]:
        click.echo(f"{finding.cause} ({finding.launches} of {finding.of} launches): {finding.evidence} {finding.fix}")
    if len(findings) > _MOST_FINDINGS:
        click.echo(f"The page has {len(findings) - _MOST_FINDINGS} more known causes.")
    problem, proofs = "", newest_proofs(results, folder.resolve().name)
    if prove:
        try:
            proofs = prove_overheads(found, blocks=repeats, data_dir=data_dir, results=results, say=click.echo)
        except RunError as error:
            problem = str(error)
    if proofs:
        table = proof_table(proofs)
        common.print_table(table.headings, table.rows)
    command = shlex.join(["harness", "explain", folder.name, *(["--base", str(base)] if base else [])])
    return replace(explain_answer(found, proofs, findings, command), problem=problem)


@click.command()
@click.argument("sweep", required=False, metavar="[LAUNCH|SWEEP]")
@click.option("--epochs", metavar="COUNTS", help="Epochs to draw, such as 1..3 [default: all].")
@click.option("--output", type=click.Path(path_type=Path), help="The file [default: REPORTS/traces/LAUNCH.json.gz].")
@common.folder_options
@common.answering
def trace(sweep: str | None, epochs: str | None, output: Path | None, results: Path, reports: Path) -> Answer:
    """Write what every rank of LAUNCH did when, on one clock, as a Chrome trace.

    Steps, allreduces with their wait and wire, input, evaluation, set-up and epochs; arrows lead from the last rank
    that came to an allreduce to those that waited for it. Of a SWEEP (the newest if none is named) the valid launch of
    median time on the most ranks is taken. Open the file in ui.perfetto.dev.
    """
    from harness.analysis.frames import launch_frame, middle_launch
    from harness.analysis.numbers import plural as counted
    from harness.analysis.read_results import load_sweep, read_calls
    from harness.analysis.trace import trace_events, trace_file

    folder = find_recorded(sweep, results)
    if not (folder / RUN_FILE).exists():
        loaded = load_sweep(folder)
        if not loaded.valid:
            raise UserError(f"sweep '{folder}' has no valid launch: name a launch's folder, or sweep again")
        folder = folder / middle_launch(launch_frame(loaded.runs, loaded.epochs))
        click.echo(f"harness: of {loaded.folder.name} the middle launch on most ranks: {folder.name}", err=True)
    run = read_run(folder)
    numbers = [count - 1 for count in parse_counts("--epochs", epochs)] if epochs else None
    content = trace_file(run, trace_events(run, read_calls(folder, run), numbers))
    path = output or reports / "traces" / f"{run.point.folder}.json.gz"
    write_atomic(path, content)
    counts = (counted(len(run.ranks), "rank"), counted(len(numbers or run.epochs), "epoch"))
    calls = "" if len(run.ranks) > 1 else " One rank alone makes no allreduce, which is what separates steps."
    return Answer(
        banners=[Banner(kind="warning", text=f"Its times are not valid: {reason}.") for reason in run.invalid],
        sentence=f"{', '.join(counts)}, {len(content) / 1e3:,.0f} kB: drop it on ui.perfetto.dev.{calls}",
        page=path,
    )
