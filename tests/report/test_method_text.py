"""The method is written once: what pages say of it stands in docs/method.md, word for word."""

from pathlib import Path

import pytest

from harness.report import method_text

DOCS = Path(__file__).parents[2] / "docs/method.md"
SENTENCES = {name: text for name, text in vars(method_text).items() if name.isupper() and isinstance(text, str)}


@pytest.mark.parametrize("name", SENTENCES)
def test_docs_have_the_sentences_of_a_page(name: str) -> None:
    lines = DOCS.read_text().splitlines()
    text = " ".join(" ".join(line.removeprefix("* ") for line in lines).split())
    assert SENTENCES[name] in text
