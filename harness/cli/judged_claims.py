"""The papers' claims, judged by what lies in the results: for `harness claims` and `harness paper`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.errors import UserError
from harness.base.files import resource
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
                click.echo(f"harness: {error}", err=True)
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
