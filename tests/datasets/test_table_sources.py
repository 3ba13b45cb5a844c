"""Own tables packed, in Parquet and behind links, and files that were put together."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from harness import datasets
from harness.cli import main
from tests.labs.own_files import lines, prepare, refused

ROWS = 40
COMMAS = lines(lambda row: f"{row}.5,{'rgb'[row % 3]},{row % 2}", "a,colour,class\n")
TABS = COMMAS.replace(",", "\t")


def write_parquet(path: Path) -> None:
    frame = pd.DataFrame({"a": [row + 0.5 for row in range(ROWS)], "colour": ["rgb"[row % 3] for row in range(ROWS)]})
    frame["class"] = [row % 2 for row in range(ROWS)]
    frame.to_parquet(path)


FILES: dict[str, Callable[[Path], object]] = {
    "own.csv": lambda path: path.write_text(COMMAS),
    "own.CSV": lambda path: path.write_text(COMMAS),
    "own.tsv": lambda path: path.write_text(TABS),
    "own.csv.gz": lambda path: path.write_bytes(gzip.compress(COMMAS.encode())),
    "own.tsv.gz": lambda path: path.write_bytes(gzip.compress(TABS.encode())),
    "own.parquet": write_parquet,
}


def expected_rows(prepared: datasets.Prepared) -> None:
    rows = np.concatenate([prepared.train_x, prepared.test_x])
    labels = np.concatenate([prepared.train_y, prepared.test_y])
    order = np.argsort(rows[:, 0])
    assert rows[order][:, 0].tolist() == [row + 0.5 for row in range(ROWS)]
    assert rows[order][:, 1:].argmax(axis=1).tolist() == [(2, 1, 0)[row % 3] for row in range(ROWS)]
    assert labels[order].tolist() == [row % 2 for row in range(ROWS)]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("linked", [False, True])
def test_every_kind_of_table_is_read_also_behind_a_link(cache: Path, tmp_path: Path, name: str, linked: bool) -> None:
    path = tmp_path / name
    if linked:  # as in the stores of DVC and of hubs of data
        blob = tmp_path / "store" / "5f2b" / "9c61"
        blob.parent.mkdir(parents=True)
        FILES[name](blob)
        path.symlink_to(blob)
    else:
        FILES[name](path)
    expected_rows(prepare(path))
    shown = CliRunner().invoke(main, ["data", "prepare", str(path)])
    assert shown.exit_code == 0 and f"{ROWS} in {name}" in shown.output, shown.output


def test_a_link_without_a_suffix_is_read_by_its_targets(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(COMMAS)
    (tmp_path / "newest").symlink_to("own.csv")
    assert CliRunner().invoke(main, ["data", "prepare", str(tmp_path / "newest")]).exit_code == 0


@pytest.mark.parametrize("name", ["own.csv.gz", "own.parquet"])
def test_damaged_files_are_refused(cache: Path, tmp_path: Path, name: str) -> None:
    FILES[name](tmp_path / name)
    content = (tmp_path / name).read_bytes()
    for cut in (0, 3, len(content) // 2, len(content) - 9):
        assert name in refused(tmp_path / name, content[:cut])


@pytest.mark.parametrize(
    "values",
    [
        pd.date_range("2024-01-01", periods=ROWS),
        [[1, 2]] * ROWS,
        [b"\xff\xfe"] * ROWS,
        [f"name {row}" for row in range(ROWS)],
        [float("inf"), *([1.0] * (ROWS - 1))],
    ],
)
def test_columns_of_parquet_that_are_neither_numbers_nor_categories_are_refused(
    cache: Path, tmp_path: Path, values: object
) -> None:
    write_parquet(tmp_path / "own.parquet")
    frame = pd.read_parquet(tmp_path / "own.parquet")
    frame["odd"] = values
    frame = pd.concat([frame] * 5)
    if isinstance(frame["odd"].iloc[0], str):
        frame["odd"] = [f"name {number}" for number in range(len(frame))]
    frame.to_parquet(tmp_path / "own.parquet")
    assert "own.parquet" in refused(tmp_path / "own.parquet", (tmp_path / "own.parquet").read_bytes())
    prepare(tmp_path / "own.parquet", drop="odd")


def test_settings_of_text_are_refused_for_parquet(cache: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "own.parquet")
    content = (tmp_path / "own.parquet").read_bytes()
    assert "--decimal comma" in refused(tmp_path / "own.parquet", content, decimal="comma")


WORDS = lines(lambda row: f"{'rgb'[row % 3]},{'xy'[row % 2]}", "colour,class\n")
NUMBERS = lines(lambda row: f"{row}.5,{'xy'[row % 2]}", "a,class\n")
YEARS = lines(lambda row: f"{'xy'[row % 2]},{row}.5", "class,2019\n")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (WORDS + WORDS, ("line 42", "header")),
        (NUMBERS + NUMBERS, ("line 42", "header")),
        (YEARS + YEARS, ("line 42", "header")),  # names that are numbers
        (WORDS.replace("b,x", "\n\nb,x", 1) + WORDS, ("line 44", "header")),  # empty lines count as lines
        (WORDS + "\ufeffr,x\n", ("line 42", "FEFF")),
        (NUMBERS + "\ufeff7,x\n", ("line 42", "FEFF")),
        (WORDS + "R,x\n", ("line 42", "'R'", "'r'", "--drop colour")),
        (WORDS + "r,X\n", ("line 42", "'X'", "'x'")),
        (NUMBERS.replace("x", "New York").replace("7.5,y", "7.5,NewYork"), ("line 9", "'NewYork'", "'New York'")),
        (WORDS.replace("r,x", '"r,x', 1), ("own.csv",)),  # a quote that nothing closes
        (WORDS.replace("r,x", '"r,x', 1).replace("r,y", '"r",y'), ("line",)),
        (WORDS.replace("r,x", '"r\ns",x', 1), ("several lines",)),
        (WORDS.replace("r,x", '""r,x', 1), ("line 2", "quotes")),
    ],
)
def test_files_that_were_put_together_are_refused_with_the_line(
    cache: Path, tmp_path: Path, content: str, parts: tuple[str, ...]
) -> None:
    sentence = refused(tmp_path / "own.csv", content)
    assert all(part in sentence for part in parts), sentence
