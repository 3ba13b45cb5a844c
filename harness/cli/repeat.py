"""What was published or recorded, repeated: `harness paper`, `claims`, `reproduce` and `bundle`.

And what `harness report` says of a bundle and of a figure's launches.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.cores import usable_cores
from harness.base.errors import RunError, UserError, unknown
from harness.base.files import resource
from harness.base.user_path import UserPath
from harness.cli import common
from harness.cli.first_use import fetch_small_set
from harness.cli.options import (
    approval,
    batch_options,
    build_layouts,
    build_submission,
    find_recorded,
    find_sweep,
    layout_options,
    refuse_elsewhere,
)
from harness.report.answer import Answer, Table
from harness.schema.claim import CLAIMS_FILE, EXPERIMENTS, Claim, Published, read_published
from harness.schema.presets import PRESETS
from harness.schema.sweep import Layout, Sweep, digest
from harness.schema.sweep_folder import sweep_folders

if TYPE_CHECKING:
    from harness.claims.claim_evidence import ClaimEvidence
    from harness.claims.judgement import ClaimStudy, Judgement
    from harness.report.paper_sections import PaperStudy
    from harness.sweep.submission import Submission

Launch = Callable[[Sweep], Path]
Together = Callable[[Sequence[Sweep]], int]


@click.command(name="paper", cls=common.GroupedCommand)
@click.option("--workloads", help="Some of the seven, such as mnist-dnn,mnist-cnn [default: all].")
@click.option("--preset", help=f"Training settings: {', '.join(PRESETS)} [default: the paper's, of March 2016].")
@click.option(
    "--repeats", type=click.IntRange(min=1), help="Launches in turns; 3 give intervals [default: 3, with --full 6]."
)
@click.option("--epochs", type=click.IntRange(min=1), help="Epochs of every experiment, instead of its own number.")
@click.option("--samples", type=click.IntRange(min=1), help="Most training rows of every experiment.")
@click.option("--full", is_flag=True, help="All rows, all epochs, 6 launches.")
@layout_options
@click.option("--oversubscribe", is_flag=True, help="Run layouts with more ranks than cores: what they learn counts.")
@batch_options
@common.data_dir_option
@common.folder_options
@common.answering
def paper(workloads: str | None, data_dir: Path | None, results: Path, reports: Path, **options: Any) -> Answer:
    """Repeat paper A's seven experiments: weights averaged once per epoch, every K steps, gradients each step.

    On one machine all of an experiment trains in turns, in 3 blocks, which give intervals. By default rows and epochs
    are cut so that all of it ends within about 15 minutes on 2 cores. The same command again runs only what is missing.
    The last line is the page's path: printed, measured and predicted, and the verdicts on the paper's claims.
    """
    from harness.claims.judgement import PRESET, ExperimentSize, plan
    from harness.report.claims_page import FOLDER
    from harness.report.paper_sections import PAPER
    from harness.report.publish import PAGE
    from harness.sweep.execute import run_sweep
    from harness.sweep.together import run_together

    published = read_published(resource(CLAIMS_FILE))
    names = common.names_in(workloads or "") or tuple(EXPERIMENTS)
    for name in names:
        if name not in EXPERIMENTS:
            raise unknown("WORKLOADS", name, EXPERIMENTS)
    submission, why = build_submission(options)
    layouts = _layouts(options, submission, published.of(PAPER))
    size = ExperimentSize(**{name: options[name] for name in ("full", "repeats", "epochs", "samples")})
    where: dict[str, Any] = {"data_dir": data_dir, "results": results, "submission": submission}
    launch = partial(run_sweep, **where, approve=approval(options))
    together = partial(run_together, **where) if submission.scheduler == "local" else None

    preset, over = options["preset"] or PRESET, options["oversubscribe"]
    planned = partial(plan, layouts=layouts, preset=preset, size=size, data_dir=data_dir, oversubscribe=over)
    for name in names:
        fetch_small_set(EXPERIMENTS[name].dataset, data_dir)
    # All plans first: a wrong setting or a damaged file ends the command before anything runs.
    plans = {
        name: tuple(replace(one, scheduler=submission.scheduler) for one in planned(EXPERIMENTS[name]))
        for name in names
    }
    if submission.scheduler != "local" or options["scheduler"] != "auto":
        click.echo(why)
    studies = _run_all(plans, launch, together, results, reports)
    answer = judged(studies, judge(results, reports), results, reports, common.given_command())
    failed = [study.experiment for study in studies if study.problem]
    problem = f"launches failed in {', '.join(failed)}: the same command again runs only what failed"
    table = next(block for block in answer.sections[0].blocks if isinstance(block, Table))
    rows = [row for row in table.rows if str(row[0]) in names]
    told = [{"name": str(name), "measured": list(map(str, measured))} for name, *measured in rows]
    return replace(
        answer,
        table=replace(table, rows=rows, title="", note=""),
        data={"experiments": told, "claims": reports / FOLDER / PAGE},
        problem=problem if failed else "",
    )


def _run_all(
    plans: Mapping[str, Sequence[Sweep]], launch: Launch, together: Together | None, results: Path, reports: Path
) -> "list[PaperStudy]":
    """Run every experiment, say how long the rest will take by what the launches so far took, and return them."""
    from harness.analysis import numbers
    from harness.report.paper_sections import PaperStudy
    from harness.report.sweep_page import report_sweep
    from harness.sweep.plan import format_seconds

    studies = []
    begin, done, total = time.monotonic(), 0, sum(map(_launches, plans.values()))
    for number, (name, sweeps) in enumerate(plans.items(), start=1):
        workload = sweeps[0].workload
        cut = f"{workload.samples:,} rows, {numbers.plural(workload.epochs, 'epoch')}"
        left = format_seconds((time.monotonic() - begin) / done * (total - done)) if done else ""
        click.echo(f"experiment {number} of {len(plans)}: {name}, {cut}{f'; about {left} left of all' if done else ''}")
        problem = _run(sweeps, launch, together)
        folders = tuple(results / sweep.name for sweep in sweeps)
        if any(folders[0].glob("*/run.json")):
            report_sweep(folders[0], reports)
        studies.append(PaperStudy(experiment=name, folders=folders, problem=problem))
        done += _launches(sweeps)
    return studies


def _launches(sweeps: Sequence[Sweep]) -> int:
    return sum(sweep.repeats * len(sweep.layouts) for sweep in sweeps)


def _layouts(options: dict[str, Any], submission: "Submission", claims: Sequence[Claim]) -> tuple[Layout, ...]:
    """Return the layouts that can run; on one machine, if none are asked for, also at the rank counts of `claims`.

    What cannot run is told. Where nothing can, all are returned: running them is refused with the reason.
    """
    from harness.claims.judgement import rank_counts
    from harness.sweep.plan import divide

    asked = dict(options)
    if submission.scheduler == "local" and not any(options[name] for name in ("nodes", "cores", "gpus")):
        asked["nodes"] = ",".join(map(str, rank_counts(usable_cores(), claims)))
    layouts, refused = build_layouts(asked, submission)
    scheduler = submission.open(oversubscribe=options["oversubscribe"])
    runnable, skipped = divide(layouts, scheduler.refusal)
    for sentence in (*refused, *(f"{one.layout}: {one.reason}" for one in skipped)):
        click.echo(f"not run: {sentence}")
    return runnable or layouts


def _run(sweeps: Sequence[Sweep], launch: Launch, together: Together | None) -> str:
    """Run the sweeps of one experiment and return what failed; that keeps no other launch from running.

    `together` trains them all in turns: on this machine, not in a queue.
    """
    if together is not None:
        missing = together(sweeps)
        return f"{missing} of {_launches(sweeps)} launches failed, or have no valid times" if missing else ""
    problems = []
    for sweep in sweeps:
        try:
            launch(sweep)
        except RunError as error:
            problems.append(str(error))
    return "; ".join(dict.fromkeys(problems))


SERVERS = "parameter-server"  # the bench's contender
_BENCH = "claims-bench"  # its page, where it ran for claims


@click.command(name="claims")
@click.option("--run", is_flag=True, help="Make the launches that judge what this machine can, in turns.")
@common.defaulted("--scheduler", default="auto", help="local: in a job of your own on a cluster.")
@common.budget_option
@common.data_dir_option
@common.folder_options
@common.answering
def claims(run: bool, scheduler: str, budget: float, data_dir: Path | None, results: Path, reports: Path) -> Answer:
    """Judge every claim of the papers by the sweeps in the results that ask its question.

    It lists which claims this machine can judge, and about what that costs. With --run it makes just those launches,
    within the minutes of --budget, and the same command again goes on; without, none. Paper A's experiments that ran
    here stand above the claims. The last line is the path of the page.
    """
    from harness.claims.judgement import studies
    from harness.report.claims_page import studies_table

    known = judge(results, reports)
    for name in ("mnist", "adult", "cifar10") if run else ():
        fetch_small_set(name, data_dir)
    planned = studies(known[0].claims, usable_cores(), data_dir, prepare=run)
    for row in studies_table(planned, known[2], known[1]).rows:
        click.echo("; ".join(map(str, row)))
    if run:
        refuse_elsewhere(scheduler)
        _run_studies(planned, known[2], 60 * budget, data_dir, results, reports)
        known = judge(results, reports)
    return judged((), known, results, reports, common.given_command(), planned)


def _run_studies(
    planned: "Sequence[ClaimStudy]",
    judgements: "Sequence[Judgement]",
    budget_s: float,
    data_dir: Path | None,
    results: Path,
    reports: Path,
) -> None:
    """Run what is left of the studies `planned`, as many as fit into the budget by what they are said to take."""
    from harness.bench.blocks import BenchSettings
    from harness.claims.judgement import BENCHED
    from harness.cli.machine import write_bench
    from harness.sweep.site import JobRequest
    from harness.sweep.submission import Submission
    from harness.sweep.together import run_together

    begin, submission = time.monotonic(), Submission(request=JobRequest(shape="block"))
    for study in planned:
        said = f"needs {study.lacks}" if study.lacks else "" if study.left(judgements) else "decided by what ran"
        if not said and time.monotonic() - begin + 60 * study.minutes > budget_s:
            said = f"left to the next command: more than what is left of {budget_s / 60:g} minutes"
        try:
            if not said and not study.sweeps:
                write_bench(
                    BenchSettings(workloads=BENCHED, contenders=("gradients", SERVERS), blocks=3), reports, _BENCH
                )
            elif not said:
                missing = run_together(study.sweeps, data_dir=data_dir, results=results, submission=submission)
                said = f"{missing} launches failed, or have no valid times" if missing else ""
        except (RunError, UserError) as error:  # the others go on
            said = str(error)
        minutes = (time.monotonic() - begin) / 60
        click.echo(f"{study.title}: {said or 'done'}; {minutes:.1f} minutes so far")


def judge(results: Path, reports: Path) -> "tuple[Published, tuple[ClaimEvidence, ...], list[Judgement]]":
    """Judge every claim by all sweeps in `results` and the bench in `reports`."""
    import pandas as pd

    from harness.bench.bench_record import RECORD, paired_rates, read_bench
    from harness.claims.claim_evidence import gather
    from harness.claims.judgement import judge_claim

    published = read_published(resource(CLAIMS_FILE))
    evidence = gather(sweep_folders(results))
    rates = pd.DataFrame()
    for bench in (reports / "bench" / RECORD, reports / _BENCH / RECORD):
        if rates.empty and bench.is_file():
            try:
                rates = pd.DataFrame(paired_rates(read_bench(bench), servers=SERVERS, gradients="gradients"))
            except UserError as error:  # it is judged without
                click.echo(f"harness: {error}", err=True)
    papers = {paper.key: paper for paper in published.papers}
    return published, evidence, [judge_claim(one, evidence, rates, papers[one.paper]) for one in published.claims]


def judged(
    ran: "Sequence[PaperStudy]",
    known: "tuple[Published, tuple[ClaimEvidence, ...], list[Judgement]]",
    results: Path,
    reports: Path,
    command: str,
    planned: "Sequence[ClaimStudy]" = (),
) -> Answer:
    """Return what is `known` by `judge` as an answer.

    `ran` were made by this command; experiments that lie in the results otherwise stand on the page too. `planned` is
    what this machine can judge.
    """
    from harness.report.claims_page import FOLDER, claims_answer
    from harness.report.paper_sections import find_studies, read_experiments

    published, evidence, judgements = known
    every = {one.experiment: one for one in (*find_studies(results), *ran)}
    experiments = read_experiments(tuple(every.values()), published, reports / FOLDER)
    return claims_answer(judgements, evidence, experiments, published, reports, planned=planned, command=command)


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
@click.option("--output", type=UserPath(), help="The archive, .tar.gz [default: in REPORTS/bundles].")
@click.option("--offline", is_flag=True, help="With wheels of all that is needed: about 0.9 GB.")
@common.folder_options
@common.answering
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
@click.argument("file", type=UserPath())
@common.answering
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


@click.command(cls=common.GroupedCommand)
@click.argument("name", metavar="LAUNCH|SWEEP|FILE")
@click.option(
    "--same-layout/--here", default=True, show_default=True, help="On the recorded ranks, or on what fits here."
)
@common.results_option
@common.data_dir_option
@batch_options
@common.answering
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
