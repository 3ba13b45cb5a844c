"""What the page of claims says of published charts."""

import pytest
from click.testing import CliRunner

from harness.cli.command_claims import claims_command


@pytest.mark.slow
def test_the_claims_page_has_the_charts_too(tmp_path):
    where = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path)]
    CliRunner().invoke(claims_command, where, catch_exceptions=False)
    page = (tmp_path / "claims" / "index.html").read_text()
    assert 'id="imagenet"' in page and "Published, GPUs" in page
