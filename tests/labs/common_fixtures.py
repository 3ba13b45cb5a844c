"""Fixtures of several rooms. What they need is imported when a test asks for them: most tests ask for none."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.labs.page_text import Text
    from tests.labs.queues import Queue
    from tests.labs.sweep_lab import Lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Lab":
    """Return a folder with a launcher that obeys, and whole sweeps in it."""
    from tests.labs.sweep_lab import make_lab

    return make_lab(tmp_path, monkeypatch)


@pytest.fixture
def queue(lab: "Lab", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Queue":
    """Return the double of a scheduler's queue, on PATH."""
    from tests.labs.queues import make_queue

    return make_queue(tmp_path, monkeypatch)


@pytest.fixture
def until(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return how to have Ctrl-C pressed after so many turns of the loop."""
    from tests.labs.queues import make_until

    return make_until(monkeypatch)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three launches at 1 and 2 ranks with one invalid, one failed, one damaged, one skipped."""
    from harness.schema.layout import Layout
    from harness.schema.sweep import Skipped
    from tests.labs.factories import make_launch, make_point, write_failure, write_run, write_study

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
    """Return the page of `study`."""
    from tests.labs.factories import write_report

    return write_report(study, study.parents[1] / "my reports")


@pytest.fixture(scope="module")
def page(report: Path) -> "Text":
    """Return what a reader sees of the page of `study`."""
    from tests.labs.page_text import Text

    return Text(report.read_text())
