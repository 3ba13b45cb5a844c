"""What the page of claims says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from harness.base.files import resource
from harness.claims.claim_evidence import gather
from harness.claims.judgement import UNKNOWN, judge_claim
from harness.report.answer import Cell
from harness.report.claims_answer import claims_answer, ledger_row, published_words
from harness.report.html_pages import write_page
from harness.schema.claim import CLAIMS_FILE, Claim, read_published
from tests.labs.claim_sweeps import before, sweep
from tests.labs.factories import write_run
from tests.labs.page_text import Text
from tests.labs.policy_sweeps import write_policies
from tests.labs.sentences import says

LEDGER = read_published(resource(CLAIMS_FILE))


def ledger(metric: str, experiment: str = "") -> Claim:
    """Return the one claim of paper A with this metric, about this experiment."""
    (found,) = [c for c in LEDGER.of("A", experiment) if c.metric == metric and not c.erratum]
    return found


def claim(value: float | None = 1.9, **changes: Any) -> Claim:
    """Return a claim about MNIST-DNN on 2 cores over 1."""
    return replace(ledger("speedup", "mnist-dnn"), **({"value": value, "base": 1, "count": 2} | changes))


SCALES = {1: 2.0, 2: 1.05}


def test_words_of_claims() -> None:
    assert published_words(claim(11.6, count=32)).replace("\u00a0", " ") == "11.6 (36 %)"
    says(published_words(ledger("speedup-of-each-step", "adult-dnn")), "chart without numbers")
    judgement = judge_claim(claim(11.6, count=32), [sweep(SCALES)], pd.DataFrame())
    _, _, value, verdict, ours, _ = ledger_row(judgement, Path("reports/claims"))
    assert isinstance(value, Cell) and value.note.split() == ["32", "cores", "over", "1"]
    assert isinstance(verdict, Cell) and verdict.tone == ""
    assert verdict.text.startswith(UNKNOWN)
    says(verdict.text, "measured on", "1, 2")
    says(verdict.text, "launches on", "32")
    assert str(ours).replace("\u00a0", " ").startswith("1.90 (95 % CI")
    few = judge_claim(
        ledger("speedup-of-an-epoch-beside-the-start"),
        [sweep(SCALES, launches=2, change=before(compile_s=1.0))],
        pd.DataFrame(),
    )
    assert "(–)" not in few.finding.reason and " 1.00; a " in few.finding.reason


def test_the_page_sets_published_beside_ours_and_invents_nothing(tmp_path: Path) -> None:
    own = sweep({1: 2.0, 2: 1.25}, launches=2)
    off = sweep({1: 2.0, 2: 1.0}, launches=2, sync="none")
    for one in (own, off):
        for run in one.runs:
            write_run(tmp_path / run.point.workload.sync.replace(":", "-"), run)
    folders = [tmp_path / "none", tmp_path / "weights-epoch"]
    evidence = gather(folders)
    judgements = [judge_claim(one, evidence, pd.DataFrame()) for one in LEDGER.claims]
    path = write_page(claims_answer(judgements, evidence, (), LEDGER, tmp_path / "reports"), tmp_path / "reports").page
    assert path is not None
    page = Text(path.read_text())
    text = str(page)
    assert page.loads == [] and len(page.ids) == len(set(page.ids))
    says(text, "became of the papers", "None", 39, f"38 {UNKNOWN}")
    says(text, "measured on", "1, 2", "32")
    says(text, "--sync none")
    assert "1.60 on 2 ranks" in text
    for entry in LEDGER.claims:
        assert entry.text in text
    for paper in LEDGER.papers:
        assert paper.testbed in text
    assert all((path.parent / link).is_dir() for link in page.links if "n2x1x1" in link)


@pytest.fixture
def policies(tmp_path: Path) -> tuple[Path, Path]:
    """`gradients` learns; `weights:epoch` runs epochs faster and needs more of them."""
    return write_policies(tmp_path / "results")


@pytest.mark.slow
def test_claims_are_judged_by_what_is_there(policies: tuple[Path, Path], tmp_path: Path) -> None:
    from harness.cli.command_claims import claims_command as command

    where = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    CliRunner().invoke(command, where, catch_exceptions=False)
    page = tmp_path / "reports" / "claims" / "index.html"
    content = page.read_text()
    text = str(Text(content)).replace("\u00a0", " ")
    says(text, 32)
    says(text, "valid launches", "cores")  # no other workload has a base here
    links = [link for link in Text(content).links if "n2x1x1" in link]
    assert links  # the dots of the figure, and the ledger
    assert all((page.parent / link.replace("%20", " ")).is_dir() for link in links)
