"""What is said of versions that cannot be compared in turns."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli import main
from harness.regression.baselines import save_baseline
from harness.regression.version_duel import HERE, why_no_checkout
from tests.labs.histories import make_measurement, make_summary


def test_a_baseline_that_no_commit_names_is_refused(tmp_path: Path) -> None:
    launches = [make_summary(1, block, 1.0, minutes=block) for block in range(6)]
    one = make_measurement(launches, dirty=True)
    save_baseline(one, "main", tmp_path, replace_it=True)
    words = ["check", "--decide", "--results", str(tmp_path / "results"), "--baselines", str(tmp_path)]
    refused = CliRunner().invoke(main, words, standalone_mode=False)
    assert isinstance(refused.exception, UserError) and "cannot be trained in turns" in str(refused.exception)
    assert "uncommitted" in why_no_checkout(one.software) or not (HERE / ".git").exists()


@pytest.mark.parametrize("words", [["a.py"], ["a.py", "b.py", "c.py"], ["a.py", "sweep"]])
def test_two_versions_are_compared_and_nothing_else(words: list[str]) -> None:
    result = CliRunner().invoke(main, ["compare", *words], standalone_mode=False)
    assert isinstance(result.exception, UserError) and "two scripts or models" in str(result.exception)
