"""What the page of reasons says, and what is refused there."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.__main__ import run_command_line as command
from harness.schema.record import read_run
from harness.schema.sweep_folder import STEPS_FILE
from tests.labs.factories import make_launch, make_point, write_run, write_study
from tests.labs.planted import BATCHES, write_planted
from tests.labs.planted_overheads import STEP, WIRE

RECORDS = Path(__file__).parents[1] / "data/mnist-dnn-6x2"


def test_launches_without_times_of_calls_are_refused_in_a_sentence(tmp_path: Path, capsys) -> None:
    study = tmp_path / "results/study"
    write_study(study)
    write_run(study, make_launch(2, 0, 1.0))
    assert command(["explain", "--results", str(tmp_path / "results")]) == 2
    said = capsys.readouterr().err
    assert "is of an older harness and lacks begin_s: run the point again" in said and "Traceback" not in said
    file = next(study.glob(f"*/{STEPS_FILE}"))
    run = read_run(file.parent)
    write_planted(tmp_path / "other", 2, 0, lambda rng, steps: np.full((steps, 2), STEP))
    shutil.copy(next((tmp_path / "other").glob(f"*/{STEPS_FILE}")), file)
    assert command(["explain", "--results", str(tmp_path / "results")]) == 2
    assert f"rows of epoch 0, its record {run.epochs[0].steps} steps on 2 ranks" in capsys.readouterr().err


def test_ranks_that_called_without_times_are_refused(tmp_path: Path, capsys) -> None:
    study = tmp_path / "results/study"
    write_study(study, ranks=(2,))
    run = write_planted(study, 2, 0, lambda rng, steps: np.full((steps, 2), STEP), wire=WIRE)
    file = study / run.point.folder / STEPS_FILE
    table = pq.read_table(file)
    nothing = pa.array(np.full(len(table), np.nan))
    for name in ("entry_s", "exit_s"):
        table = table.set_column(table.column_names.index(name), name, nothing)
    pq.write_table(table, file)
    assert command(["explain", "--results", str(tmp_path / "results")]) == 2
    assert "has no times of single synchronisation calls in epoch 0" in capsys.readouterr().err


def test_the_command_is_one_document_and_a_page(tmp_path: Path, capsys) -> None:
    shutil.copytree(RECORDS, tmp_path / "results" / RECORDS.name)
    places = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    assert command(["explain", "mnist", *places, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["answer"].startswith("2 ranks spend 13.7 % of the epoch beyond the ideal: allreduce time 13.1 %")
    (point,) = document["bills"]
    assert sum(item["share"] for item in point["items"]) == pytest.approx(1)
    assert [finding["cause"] for finding in document["findings"]] == ["learning rate"]
    assert document["trees"][1]["metrics"]["global efficiency"]["interval"]["low"] < 0.87
    page = Path(document["page"])
    assert page == tmp_path / "reports/explain" / RECORDS.name / "index.html"
    assert {file.name for file in page.parent.glob("*.pdf")} == {"overheads.pdf"}
    assert "For whom 2\u00a0ranks wait" in page.read_text() and "Proof" not in page.read_text()


def test_ranks_that_do_not_synchronise_wait_for_nobody(tmp_path: Path, capsys) -> None:
    study = tmp_path / "results/study"
    write_study(study, sync="none")
    for ranks, seconds in ((1, 1.0), (2, 0.52)):
        step = seconds * ranks / BATCHES
        write_planted(
            study,
            ranks,
            0,
            lambda rng, steps, size=(ranks, step): np.full((steps, size[0]), size[1]),
            point=make_point(ranks, 0, sync="none"),
        )
    assert command(["explain", "--results", str(study.parent), "--reports", str(tmp_path / "reports")]) == 0
    assert "spend 3.8 % of the epoch beyond the ideal: " in capsys.readouterr().out.replace("\u00a0", " ")


def test_one_point_alone_has_a_tree_and_no_overheads(tmp_path: Path, capsys) -> None:
    study = tmp_path / "results/study"
    write_study(study, ranks=(2,))
    write_planted(study, 2, 0, lambda rng, steps: np.full((steps, 2), STEP), wire=WIRE)
    places = ["--results", str(study.parent), "--reports", str(tmp_path / "reports")]
    assert command(["explain", *places]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ". . . serialisation efficiency 100.0 %" in said
    assert "2 ranks: 90.9 % of the time is useful; there is no other point of the same work to compare." in said
