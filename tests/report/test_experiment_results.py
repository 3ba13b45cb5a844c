"""The page of the paper's experiments: accuracy beside every speedup, and all that is cut told."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.files import resource
from harness.claims.paper_experiments import PRESET
from harness.report.claims_answer import FOLDER, claims_answer
from harness.report.experiment_results import PaperStudy, read_experiments
from harness.report.html_pages import write_page
from harness.schema.claim import CLAIMS_FILE, Published, read_published
from harness.schema.presets import SOURCES
from harness.schema.record import RunRecord
from tests.labs.factories import make_point, make_run, write_run
from tests.labs.page_text import Text
from tests.labs.sentences import says

WEIGHTS, GRADIENTS = "weights each epoch", "gradients each step"  # what is averaged: cells and CSV
PROBLEM = "2 of 4 launches failed"


@pytest.fixture(scope="module")
def published() -> Published:
    return read_published(resource(CLAIMS_FILE))


def run_of(ranks: int, seconds: float, accuracies: tuple[float, ...], sync: str, **changes: object) -> RunRecord:
    """Epochs of `seconds` each, with these test accuracies."""
    point = make_point(ranks, sync=sync, preset=PRESET, epochs=len(accuracies))
    run = make_run(point, seconds=[[seconds] * ranks] * len(accuracies), **changes)
    epochs = tuple(replace(e, test_accuracy=a) for e, a in zip(run.epochs, accuracies, strict=True))
    return replace(run, epochs=epochs)


def drawn(tmp_path: Path, published: Published, **changes: object) -> tuple[Path, str]:
    """Return the page about MNIST-DNN: averaging per epoch halves the epoch and needs one more, gradients do not."""
    runs = {
        "weights:epoch": [run_of(1, 2.0, (0.8, 0.9, 0.91), "weights:epoch"), None],
        "gradients": [run_of(2, 1.25, (0.8, 0.9, 0.91), "gradients")],
    }
    runs["weights:epoch"][1] = run_of(2, 1.0, (0.7, 0.85, 0.905), "weights:epoch", **changes)
    folders = []
    for sync, found in runs.items():
        folders.append(tmp_path / "results" / sync)
        for run in found:
            write_run(folders[-1], run)
    study = PaperStudy(experiment="mnist-dnn", folders=(*folders, tmp_path / "results" / "never run"))
    failed = PaperStudy(experiment="adult-dnn", folders=(), problem=PROBLEM)
    reports = tmp_path / "reports"
    experiments = read_experiments([study, failed], published, reports / FOLDER)
    answer = claims_answer([], [], experiments, published, reports, command="harness paper --epochs 3")
    page = write_page(answer, reports).page
    assert page is not None
    return page, " ".join(str(Text(page.read_text())).replace("\u00a0", " ").split())


def test_page_has_accuracy_beside_every_speedup_and_says_what_is_cut(tmp_path: Path, published: Published) -> None:
    page, text = drawn(tmp_path, published)
    says(text, "Averaging once per epoch", "2 ranks", "2.00", "1 point", "1.33")
    assert "mnist-dnn 11.6 on 32 over 1 2 2.00 1.33 –" in text  # one line of all experiments
    assert "paper --epochs 3" in text and "Date 2" in text
    assert WEIGHTS in text and GRADIENTS in text
    says(text, "one rank alone")
    assert "to 90.0 %" in text  # of one rank's 91 %, less a point
    says(text, "the preset's", "6,400", "60,000", 3, 30, 6)
    says(text, "model parallelism")
    assert SOURCES[PRESET] in text
    assert f"ADULT-DNN: {PROBLEM}" in text
    table = (page.parent / "experiment-mnist-dnn.csv").read_text().splitlines()
    assert [line.split(",")[:4] for line in table[1:]] == [
        ["published", "1", "32", "11.6"],
        [WEIGHTS, "1", "1", "1.0"],
        [WEIGHTS, "1", "2", "2.0"],
        [GRADIENTS, "1", "2", "1.6"],
    ]
    assert (page.parent / "experiment-mnist-dnn.svg").is_file()


def test_a_disturbed_launch_has_no_times_and_still_what_it_learned(tmp_path: Path, published: Published) -> None:
    reason = "more ranks than cores"
    page, text = drawn(tmp_path, published, invalid=(reason,))
    says(text, "None has")
    assert "90.50 %" in text and reason in text
    says(text, "not valid")
    assert f"{GRADIENTS},1,2,1.6" in (page.parent / "experiment-mnist-dnn.csv").read_text()
