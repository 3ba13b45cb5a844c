"""`harness claims`: what our launches say about the papers' published numbers."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.answer import answering
from harness.cli.common import network_option, reports_option, results_option
from harness.report.answer import Answer, Table

SERVERS = "parameter-server"  # the bench's contender

if TYPE_CHECKING:
    import pandas as pd

    from harness.claims.wording import ClaimRow
    from harness.report.claims_page import PredictionBasis


@click.command(name="claims")
@network_option
@results_option
@reports_option
@answering
def claims(network: str | None, results: Path, reports: Path) -> Answer:
    """Judge every claim of the papers by the sweeps in the results that ask its question; run nothing.

    The last line is the path of the claims page.
    """
    return ledger_answer(network, results, reports)


def ledger_answer(network: str | None, results: Path, reports: Path) -> Answer:
    """Judge by all sweeps in `results` and the bench in `reports`, tell it, write its page and return the answer."""
    from harness.base.files import resource
    from harness.claims.evidence import gather
    from harness.claims.finding import JUDGED
    from harness.claims.verdict import judge_all
    from harness.claims.wording import claim_row, headline
    from harness.report.claims_page import write_claims
    from harness.schema.claim import CLAIMS_FILE, read_published
    from harness.schema.sweep import sweep_folders

    ledger = read_published(resource(CLAIMS_FILE))
    evidence = gather(sweep_folders(results))
    judgements = judge_all(ledger.claims, evidence, _bench_rates(reports))
    judged = [_row(claim_row(one)) for one in judgements if one.finding.outcome in JUDGED]
    return Answer(
        sentence=headline(judgements),
        table=Table(title="", headings=("Paper", "Claim", "Published", "Found here", "Verdict"), rows=judged),
        data={
            "claims": [
                {
                    "claim": one.claim,
                    "outcome": one.finding.outcome,
                    "said": one.finding.said,
                    "sweeps": [used.loaded.folder for used in one.finding.used],
                }
                for one in judgements
            ]
        },
        page=write_claims(judgements, evidence, ledger, reports, find_model(network, results), results=results),
    )


def write_ledger(network: str | None, results: Path, reports: Path) -> Path:
    """Judge the claims, tell the answer's sentence and return the page's path."""
    answer = ledger_answer(network, results, reports)
    click.echo(answer.sentence)
    assert answer.page is not None
    return answer.page


def _row(row: "ClaimRow") -> tuple[str, ...]:
    claim = row.claim
    about = f"{claim.experiment}: " if claim.experiment else ""
    return f"{claim.paper}, {row.figure}", about + claim.text, row.value, row.said, row.outcome


def _bench_rates(reports: Path) -> "pd.DataFrame":
    """Return what the bench in `reports` says about parameter servers; nothing without a valid round of them."""
    import pandas as pd

    from harness.bench.bench_record import RECORD, BenchRecord
    from harness.bench.ratios import paired_rates
    from harness.schema.record import decode

    path = reports / "bench" / RECORD
    if not path.is_file():
        return pd.DataFrame()
    record = decode(path.read_bytes(), BenchRecord, path)
    return pd.DataFrame(paired_rates(record, servers=SERVERS, gradients="gradients"))


def find_model(network: str | None, results: Path) -> "PredictionBasis | None":
    """Return what the claims page predicts with, None without a network (`find_network`)."""
    from harness.cli.predict import find_network
    from harness.report.claims_page import PredictionBasis

    found = find_network(network, results)
    return PredictionBasis(network=found[0], said=found[1]) if found else None
