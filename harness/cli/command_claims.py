"""``harness claims``: the papers' published numbers, judged by the launches that are here."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.cores import usable_cores
from harness.base.errors import RunError, UserError
from harness.base.files import resource
from harness.cli.answer_output import answering
from harness.cli.common_options import (
    budget_option,
    context_options,
    defaulted,
    given_command,
    mpi_option,
    refuse_given,
)
from harness.cli.first_use import fetch_small_set
from harness.cli.launch_options import refuse_elsewhere
from harness.cli.terminal import echo
from harness.report.answer import Answer
from harness.schema.claim import CLAIMS_FILE, Published, read_published
from harness.schema.sweep_folder import sweep_folders

if TYPE_CHECKING:
    from harness.claims.claim_evidence import ClaimEvidence
    from harness.claims.claim_studies import ClaimStudy
    from harness.claims.judgement import Judgement
    from harness.report.experiment_results import PaperStudy

SERVERS = "parameter-server"  # the bench's contender
CLAIMS_BENCH = "claims-bench"  # the bench's page, where it ran for claims


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedClaims:
    """The published claims, what the sweeps here say of each, and the judgement on each."""

    published: Published
    evidence: "tuple[ClaimEvidence, ...]"
    judgements: "list[Judgement]"


def judge_all_claims(context: Context) -> JudgedClaims:
    """Judge every claim by all sweeps in the results and the bench in the reports."""
    import pandas as pd

    from harness.bench.bench_record import RECORD, paired_rates, read_bench
    from harness.claims.claim_evidence import gather
    from harness.claims.judgement import judge_claim

    published = read_published(resource(CLAIMS_FILE))
    evidence = gather(sweep_folders(context.results))
    rates = pd.DataFrame()
    for bench in (context.reports / "bench" / RECORD, context.reports / CLAIMS_BENCH / RECORD):
        if rates.empty and bench.is_file():
            try:
                rates = pd.DataFrame(paired_rates(read_bench(bench), servers=SERVERS, gradients="gradients"))
            except UserError as error:  # it is judged without
                echo(f"harness: {error}", err=True)
    judgements = [judge_claim(claim, evidence, rates) for claim in published.claims]
    return JudgedClaims(published=published, evidence=evidence, judgements=judgements)


def judged_answer(
    judged: JudgedClaims,
    context: Context,
    command: str,
    ran: "Sequence[PaperStudy]" = (),
    planned: "Sequence[ClaimStudy]" = (),
) -> Answer:
    """Return the claims as an answer.

    Studies that were `ran` by this command, and experiments that lie in the results otherwise, stand on the page too.
    `planned` is what this machine can judge.
    """
    from harness.report.claims_answer import FOLDER, claims_answer
    from harness.report.experiment_results import find_studies, read_experiments

    studies = {study.experiment: study for study in (*find_studies(context.results), *ran)}
    published = judged.published
    experiments = read_experiments(tuple(studies.values()), published, context.reports / FOLDER)
    return claims_answer(
        judged.judgements,
        judged.evidence,
        experiments,
        published,
        context.reports,
        planned=planned,
        command=command,
    )


@click.command(name="claims")
@click.option("--run", is_flag=True, help="Make the launches that judge what this machine can, interleaved.")
@defaulted("--scheduler", default="auto", help="local: in a job of your own on a cluster.")
@budget_option
@context_options("data_dir", "results", "reports", measures=True)
@answering
@mpi_option
def claims_command(run: bool, scheduler: str, budget: float, context: Context) -> Answer:
    """Judge every claim of the papers by the sweeps in the results that ask its question.

    It lists which claims this machine can judge, and about what that costs. With --run it makes just those launches,
    within the minutes of --budget, and the same command again goes on; without, none. Paper A's experiments that ran
    here stand above the claims. The last line is the path of the page.
    """
    from harness.claims.claim_studies import StudyPlanner
    from harness.report.claims_answer import studies_table

    if not run:
        refuse_given("without --run nothing is trained", "scheduler", "budget")
    else:
        refuse_elsewhere(scheduler)
    judged = judge_all_claims(context)
    for name in ("mnist", "adult", "cifar10") if run else ():
        fetch_small_set(name, context.data_dir)
    planned = StudyPlanner(judged.published.claims, usable_cores(), context.data_dir).studies()
    for row in studies_table(planned, judged.judgements, judged.evidence).rows:
        echo("; ".join(map(str, row)))
    if run:
        begin = time.monotonic()
        for study in planned:
            outcome = _why_not_run(study, judged.judgements, begin, 60 * budget) or _run_study(study, context)
            minutes = (time.monotonic() - begin) / 60
            context.say(f"{study.title}: {outcome}; {minutes:.1f} minutes so far")
        judged = judge_all_claims(context)
    return judged_answer(judged, context, given_command(), planned=planned)


def _why_not_run(study: "ClaimStudy", judgements: "Sequence[Judgement]", begin: float, budget_s: float) -> str:
    """Return why `study` is left out of a command that began at `begin`, empty if it is run."""
    if study.lacks:
        return f"needs {study.lacks}"
    if not study.left(judgements):
        return "decided by what ran"
    if time.monotonic() - begin + 60 * study.minutes > budget_s:
        return f"left to the next command: more than what is left of {budget_s / 60:g} minutes"
    return ""


def _run_study(study: "ClaimStudy", context: Context) -> str:
    """Make the launches of `study`, or the bench if it has none, and return what came of it."""
    from harness.bench.bench_runner import BenchSettings
    from harness.claims.claim_studies import BENCHED
    from harness.cli.command_bench import write_bench
    from harness.sweep.execute import run_together
    from harness.sweep.site import JobRequest
    from harness.sweep.submission_settings import Submission

    try:
        if not study.sweeps:
            settings = BenchSettings(workloads=BENCHED, contenders=("gradients", SERVERS), blocks=3)
            write_bench(settings, context, CLAIMS_BENCH)
            return "done"
        submission = Submission(request=JobRequest(mode="turns"))
        missing = run_together(study.sweeps, context, submission)
    except (RunError, UserError) as error:  # the others go on
        return str(error)
    return f"{missing} launches failed, or have no valid times" if missing else "done"
