"""What a reader sees of a page."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.schema.layout import Layout
from harness.schema.sweep import Skipped
from tests.labs.factories import (
    make_launch,
    make_point,
    write_failure,
    write_report,
    write_run,
    write_study,
)


class Text(HTMLParser):
    """The visible text of a page, its tags, and every address it could load from."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "href") and not (value or "").startswith("#"):
                self.loads.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def __str__(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three launches at 1 and 2 ranks with one invalid, one failed, one damaged, one skipped."""
    folder = tmp_path_factory.mktemp("my results") / "mnist study"
    skipped = Skipped(layout=Layout(nodes=4), reason="4 ranks need 4 cores, this machine has 2")
    write_study(folder, skipped=(skipped,))
    for repeat, (one, two) in enumerate(((2.0, 1.25), (2.1, 1.2), (1.9, 1.3))):
        write_run(folder, make_launch(1, repeat, one))
        write_run(folder, make_launch(2, repeat, two))
    write_run(folder, make_launch(2, 3, 77.0, invalid=("other processes kept 1.4 cores <busy>",)))
    (write_run(folder, make_launch(2, 4, 1.0)) / "run.json").write_text("{")
    write_failure(folder, make_point(2, 5), "rank 1: the shard is empty")
    return folder


@pytest.fixture(scope="module")
def report(study: Path) -> Path:
    return write_report(study, study.parents[2] / "my reports")


@pytest.fixture(scope="module")
def page(report: Path) -> Text:
    return Text(report.read_text())
