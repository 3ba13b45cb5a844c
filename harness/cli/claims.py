"""`harness claims`: what our launches say about the papers' experiments and published numbers."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.answering import answering
from harness.cli.common import budget_option, data_dir_option, given_command, reports_option, results_option
from harness.report.answer import Answer

if TYPE_CHECKING:
    from harness.claims.campaign import ClaimStudy
    from harness.claims.claim_evidence import ClaimEvidence
    from harness.claims.judgement import Judgement
    from harness.report.answer import Table
    from harness.report.paper_sections import PaperStudy
    from harness.schema.claim import Published

SERVERS = "parameter-server"  # the bench's contender
_BENCH = "claims-bench"  # its page, where it ran for claims


@click.command(name="claims")
@click.option("--run", is_flag=True, help="Make the launches that judge what this machine can, in turns.")
@click.option("--scheduler", default="auto", show_default=True, help="local: in a job of your own on a cluster.")
@budget_option
@data_dir_option
@results_option
@reports_option
@answering
def claims(run: bool, scheduler: str, budget: float, data_dir: Path | None, results: Path, reports: Path) -> Answer:
    """Judge every claim of the papers by the sweeps in the results that ask its question.

    It lists which claims this machine can judge, and about what that costs. With --run it makes just those launches,
    within the minutes of --budget, and the same command again goes on; without, none. Paper A's experiments that ran
    here stand above the claims. The last line is the path of the page.
    """
    from harness.base.cores import usable_cores
    from harness.claims.campaign import studies
    from harness.cli.options import refuse_elsewhere
    from harness.report.claims_page import studies_table
    from harness.report.publish import write_page

    known = judge(results, reports)
    planned = studies(known[0].claims, usable_cores(), data_dir, prepare=run)
    for row in studies_table(planned, known[2], known[1]).rows:
        click.echo("; ".join(map(str, row)))
    if run:
        refuse_elsewhere(scheduler)
        _run(planned, known[2], 60 * budget, data_dir, results, reports)
        known = judge(results, reports)
    return write_page(judged((), known, results, reports, given_command(), planned)[0], reports, results)


def _run(
    planned: "Sequence[ClaimStudy]", judgements: "Sequence[Judgement]", budget_s: float, data_dir: Path | None,
    results: Path, reports: Path,
) -> None:  # fmt: skip
    """Run what is left of the studies `planned`, as many as fit into the budget by what they are said to take."""
    from harness.base.errors import RunError, UserError
    from harness.sweep.execute import run_together
    from harness.sweep.job_options import JobRequest
    from harness.sweep.submission import Submission

    begin, submission = time.monotonic(), Submission(request=JobRequest(shape="block"))
    for study in planned:
        said = f"needs {study.lacks}" if study.lacks else "" if study.left(judgements) else "decided by what ran"
        if not said and time.monotonic() - begin + 60 * study.minutes > budget_s:
            said = f"left to the next command: more than what is left of {budget_s / 60:g} minutes"
        try:
            if not said and not study.sweeps:
                _bench(reports)
            elif not said:
                missing = run_together(study.sweeps, data_dir=data_dir, results=results, submission=submission)
                said = f"{missing} launches failed, or have no valid times" if missing else ""
        except (RunError, UserError) as error:  # the others go on
            said = str(error)
        minutes = (time.monotonic() - begin) / 60
        click.echo(f"{study.title}: {said or 'done'}; {minutes:.1f} minutes so far")


def _bench(reports: Path) -> None:
    """Train with parameter servers beside `gradients`; the page is another than that of `harness bench`."""
    from harness.base.hostlock import HostLock
    from harness.base.processes import interruptible
    from harness.bench.blocks import BenchSettings, run_bench
    from harness.claims.campaign import BENCHED
    from harness.report.bench_page import bench_answer
    from harness.report.publish import write_page

    settings = BenchSettings(workloads=BENCHED, contenders=("gradients", SERVERS), blocks=3)
    with interruptible(), HostLock().held(f"a bench in '{Path.cwd()}'", click.echo) as handles:
        for record in run_bench(settings, click.echo, handles):
            write_page(replace(bench_answer(record), place=_BENCH), reports)


def judge(results: Path, reports: Path) -> "tuple[Published, tuple[ClaimEvidence, ...], list[Judgement]]":
    """Judge every claim by all sweeps in `results` and the bench in `reports`."""
    import pandas as pd

    from harness.base.errors import UserError
    from harness.base.files import resource
    from harness.bench.bench_record import RECORD, read_bench
    from harness.bench.ratios import paired_rates
    from harness.claims.claim_evidence import gather
    from harness.claims.judgement import judge_claim
    from harness.schema.claim import CLAIMS_FILE, read_published
    from harness.schema.sweep import sweep_folders

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
) -> "tuple[Answer, Table]":
    """Return what is `known` by `judge` as an answer, and its table of experiments.

    `ran` were made by this command; experiments that lie in the results otherwise stand on the page too. `planned` is
    what this machine can judge.
    """
    from harness.report.claims_page import FOLDER, claims_answer
    from harness.report.paper_sections import experiments_table, find_studies, read_experiments

    published, evidence, judgements = known
    every = {one.experiment: one for one in (*find_studies(results), *ran)}
    experiments = read_experiments(tuple(every.values()), published, reports / FOLDER)
    answer = claims_answer(judgements, evidence, experiments, published, reports, planned=planned, command=command)
    return answer, experiments_table(experiments, judgements)
