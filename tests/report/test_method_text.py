"""The method is written once: what pages say of it stands in docs/method.md, word for word."""

from pathlib import Path

import pytest

import harness.base
from harness.report import method_text
from tests.labs.factories import make_run

DOCS = Path(__file__).parents[2] / "docs/method.md"
SENTENCES = {name: text for name, text in vars(method_text).items() if name.isupper() and isinstance(text, str)}


@pytest.mark.parametrize("name", SENTENCES)
def test_docs_have_the_sentences_of_a_page(name: str) -> None:
    lines = DOCS.read_text().splitlines()
    text = " ".join(" ".join(line.removeprefix("* ") for line in lines).split())
    assert SENTENCES[name] in text


def first_entry() -> list[str]:
    """Return the lines of the entry of the harness itself."""
    entry, _, _ = method_text.bibtex([make_run()]).partition("\n}\n")
    return entry.splitlines()


def test_the_reference_has_authors_version_and_commit() -> None:
    lines = first_entry()
    assert lines[0] == "@misc{mpi-tf-harness," and "" not in lines
    assert f"  author = {{{{{harness.base.AUTHORS}}}}}," in lines
    assert "  version = {0.1.0}," in lines  # that of the record
    assert not any("url" in line for line in lines)


def test_the_reference_has_the_address_that_the_owner_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.base.ADDRESS", "https://example.org/harness")
    assert "  url = {https://example.org/harness}," in first_entry()
