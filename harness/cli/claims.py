"""`harness claims`: what our launches say about the papers' experiments and published numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.answering import answering
from harness.cli.common import network_option, reports_option, results_option
from harness.report.answer import Answer

if TYPE_CHECKING:
    from harness.report.paper_sections import PaperExperiment, PaperStudy

SERVERS = "parameter-server"  # the bench's contender


@click.command(name="claims")
@network_option
@results_option
@reports_option
@answering
def claims(network: str | None, results: Path, reports: Path) -> Answer:
    """Judge every claim of the papers by the sweeps in the results that ask its question; run nothing.

    Paper A's experiments that ran here stand above the claims. The last line is the path of the page.
    """
    from harness.report.publish import write_page

    return write_page(judged((), network, results, reports)[0], reports, results)


def judged(
    studies: "Sequence[PaperStudy]", network: str | None, results: Path, reports: Path, command: str = "harness claims"
) -> "tuple[Answer, tuple[PaperExperiment, ...]]":
    """Judge by all sweeps in `results` and the bench in `reports`; return the answer, and the experiments on its page.

    `studies` were made by this command; experiments that lie in the results otherwise stand on the page too.
    """
    import pandas as pd

    from harness.base.errors import UserError
    from harness.base.files import resource
    from harness.bench.bench_record import RECORD, read_bench
    from harness.bench.ratios import paired_rates
    from harness.claims.claim_evidence import gather
    from harness.claims.judgement import judge_claim
    from harness.cli.predict import find_network
    from harness.report.claims_page import FOLDER, claims_answer
    from harness.report.paper_sections import find_studies, read_experiments
    from harness.schema.claim import CLAIMS_FILE, read_published
    from harness.schema.sweep import sweep_folders

    published = read_published(resource(CLAIMS_FILE))
    evidence = gather(sweep_folders(results))
    bench, rates = reports / "bench" / RECORD, pd.DataFrame()
    if bench.is_file():
        try:
            rates = pd.DataFrame(paired_rates(read_bench(bench), servers=SERVERS, gradients="gradients"))
        except UserError as error:  # it is judged without
            click.echo(f"harness: {error}", err=True)
    judgements = [judge_claim(claim, evidence, rates) for claim in published.claims]
    every = {one.experiment: one for one in (*find_studies(results), *studies)}
    experiments = read_experiments(tuple(every.values()), published, reports / FOLDER)
    links = find_network(network, results)
    answer = claims_answer(judgements, evidence, experiments, published, reports, network=links, command=command)
    return answer, experiments
