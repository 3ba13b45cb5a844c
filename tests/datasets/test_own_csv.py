"""A census table as it is published, with names, texts and question marks, from its raw file to the report."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.schema.record import read_run

NAMES = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,capital-gain,"
    "capital-loss,hours-per-week,native-country,income"
)


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.usefixtures("warm")
def test_a_census_table_becomes_a_report(
    shared_data: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = (shared_data / "adult/adult.data").read_text()
    (tmp_path / "census.csv").write_text(f"{NAMES}\n{raw}")
    monkeypatch.chdir(tmp_path)
    words = [
        "sweep",
        "--data",
        "census.csv",
        "--label",
        "income",
        "--drop",
        "fnlwgt",
        "--nodes",
        "2",
        "--oversubscribe",
    ]
    ended = CliRunner().invoke(main, [*words, "--scheduler", "local", "--epochs", "2", "--repeats", "1"])
    assert ended.exit_code == 0, ended.output
    (record,) = (path.parent for path in (tmp_path / "results").glob("*/*/run.json"))
    run = read_run(record)
    # Five numbers but fnlwgt; 8, 16, 7, 14, 6, 5, 2 and 41 categories.
    assert run.data.features == (5 + 99,) and run.data.classes == 2
    assert run.data.train_rows + run.data.test_rows == 32_561
    assert run.epochs[-1].test_accuracy > 0.8
    (page,) = (path.read_text() for path in (tmp_path / "reports").glob("*/index.html"))
    for part in ("workclass 1,836", "occupation 1,843", "native-country 583", "left out of census.csv: fnlwgt"):
        assert part in run.data.note
        assert part in page
    assert "Label column" in page and "The test rows of census.csv were held out" in page
