"""Sync policies side by side: like is compared with like."""

from pathlib import Path

import pytest

from harness.report.html_pages import write_page
from harness.report.policies_answer import policies_answer
from tests.labs.factories import make_data, make_point, make_run, write_run, write_study
from tests.labs.page_text import Text
from tests.labs.policy_sweeps import write_policies
from tests.labs.sentences import refuses, says


@pytest.fixture
def policies(tmp_path: Path) -> tuple[Path, Path]:
    """`gradients` learns; `weights:epoch` runs epochs faster and needs more of them."""
    return write_policies(tmp_path / "results")


def test_a_policy_cannot_look_better_than_it_is(policies: tuple[Path, Path], tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    page = write_page(policies_answer(policies, reports), reports).page
    assert page is not None
    text = str(Text(page.read_text())).replace("\u00a0", " ")
    says(text, "Which of these sweeps", "94.0 %", "gradients", "2 ranks", "2.40 s")
    assert "0 of 6" in says(text, "not reached")  # though its epochs are twice as fast
    table = (page.parent / "accuracy-by-policy.csv").read_text()
    assert "weights:epoch" in table and "gradients" in table
    low = policies_answer(policies, reports, target=0.85).sentence
    says(low, "test accuracy is reached", "85.0 %", "gradients", "2 ranks", "1.20 s")


def test_side_by_side_compares_like_with_like(policies: tuple[Path, Path], tmp_path: Path) -> None:
    with refuses("side needs at least"):
        policies_answer(policies[:1], tmp_path / "reports")
    other = tmp_path / "results" / "other"
    write_study(other, dataset="adult")
    write_run(other, make_run(make_point(1, dataset="adult"), data=make_data(name="adult", sha256="ef" * 32)))
    with refuses("are not of one"):
        policies_answer([policies[0], other], tmp_path / "reports")
    assert not (tmp_path / "reports").exists()
