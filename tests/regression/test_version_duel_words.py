"""What is said of versions that cannot be compared in turns."""

import pytest
from click.testing import CliRunner

from harness.base.errors import UserError
from harness.cli import main


@pytest.mark.parametrize("words", [["a.py"], ["a.py", "b.py", "c.py"], ["a.py", "sweep"]])
def test_two_versions_are_compared_and_nothing_else(words: list[str]) -> None:
    result = CliRunner().invoke(main, ["compare", *words], standalone_mode=False)
    assert isinstance(result.exception, UserError) and "two scripts or models" in str(result.exception)
