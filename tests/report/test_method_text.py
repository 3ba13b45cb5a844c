"""The method is written once: what pages say of it stands in docs/method.md, word for word."""

from dataclasses import replace
from pathlib import Path

import pytest

import harness.base
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import scale
from harness.report import method_text
from tests.labs.factories import make_launch, make_run, write_run
from tests.labs.sentences import says

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


def test_a_papers_methods_say_which_rounds_count(tmp_path: Path) -> None:
    for repeat in range(3):
        for ranks in (1, 2):
            write_run(tmp_path, make_launch(ranks, repeat, 1.0 / ranks))
    loaded = load_sweep(tmp_path)
    scaling = scale(launch_frame(loaded.runs, loaded.epochs))
    assert scaling is not None
    for ran_seconds, is_left_out in ((1.1, True), (scaling.base.seconds, False)):
        base = replace(scaling.base, ran_seconds=ran_seconds)
        text = method_text.methods(loaded, replace(scaling, base=base, left_out=0.17))
        says(text, "1 and 2 MPI ranks", "1 rank (1.00 s per epoch)")
        assert ("17 %" in text and "5 %" in text) == is_left_out
