"""The label of a user's own file, its columns without names, its test rows, and what is said of it."""

import html
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from harness import datasets
from harness.base.errors import UserError
from harness.cli import main
from harness.datasets.own_table import LabelChoice
from harness.datasets.prepare import draw_rows
from harness.schema.data_record import OwnFile, TableColumns
from harness.schema.record import read_run
from tests.labs.factories import make_launch, write_report, write_run
from tests.labs.own_files import lines, prepare, refused

ROWS = 40
KINDS = ("setosa", "versicolor", "virginica")


def flower(row: int) -> str:
    return KINDS[row * 7 % 3]


def own(prepared: datasets.Prepared) -> OwnFile:
    assert prepared.record.own_file is not None
    return prepared.record.own_file


def columns(prepared: datasets.Prepared) -> TableColumns:
    table = own(prepared).table
    assert table is not None
    return table


INDEXES: dict[str, str] = {
    "pandas": lines(lambda row: f"{row},{row % 9}.5,{row % 4},{row % 3}", ",a,b,class\n"),
    "pandas, from 1": lines(lambda row: f"{row + 1},{row % 9}.5,{row % 4},{row % 3}", ",a,b,class\n"),
    "pandas, twice": lines(lambda row: f"{row},{row % 9}.5,{row % 4},{row % 3}", "Unnamed: 0,a,b,class\n"),
    "shuffled": lines(lambda row: f"{row * 7 % ROWS},{row % 9}.5,{row % 4},{row % 3}", ",a,b,class\n"),
    "two tables in one": lines(lambda row: f"{row % 20},{row % 9}.5,{row % 4},{row % 3}", ",a,b,class\n"),
    "names of rows": lines(lambda row: f"car {row},{row % 9}.5,{row % 4},{row % 3}", ",a,b,class\n"),
    "between semicolons": lines(lambda row: f"{row};{row % 9},5;{row % 4};{row % 3}", ";a;b;class\n"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_nameless_column_that_numbers_the_rows_is_left_out(cache: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(INDEXES[name])
    prepared = prepare(path)
    table = columns(prepared)
    assert (table.label, table.label_choice, table.numbers) == ("class", LabelChoice.BY_NAME.value, ("a", "b"))
    assert [(column.name, column.reason) for column in table.left_out] == [("column 1", "index")]
    x = np.concatenate([prepared.train_x, prepared.test_x])
    assert sorted(map(tuple, x.tolist())) == sorted((row % 9 + 0.5, row % 4) for row in range(ROWS))
    assert own(prepared).class_rows == (14, 13, 13)


HEADERS: dict[str, tuple[str, int]] = {  # the text and its rows
    "iris.data": (lines(lambda row: f"{row % 2},3.5,1.{row},{flower(row)}"), ROWS),
    "adult.data": (lines(lambda row: f"{row % 2}, {flower(row)}, {row % 9}, {'Male' if row % 3 else 'Female'}"), ROWS),
    "no header of fractions": (lines(lambda row: f"{row % 2},{row}.5,{row % 7}.25"), ROWS),
    "names of years": (lines(lambda row: f"{row % 2},{row}.5,{row % 7}", "class,2019,2020\n"), ROWS),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_no_row_and_a_row_no_header(cache: Path, tmp_path: Path, name: str) -> None:
    content, count = HEADERS[name]
    path = tmp_path / "own.csv"
    path.write_text(content)
    assert own(prepare(path)).rows == count


@pytest.mark.parametrize(
    ("content", "likely"),
    [
        (lines(lambda row: f"0.{row + 1},1.5,{flower(row)}", "length,width,species\n"), "species"),
        (lines(lambda row: f"{row},{row % 4},{row}.5,{row % 2}", "id,size,price,sold\n"), "sold"),
        (lines(lambda row: f"{row},{flower(row)},{row}.5,{row}.25", "id,kind,a,b\n"), "kind"),
        (lines(lambda row: f"0.{row + 1},1.{row},{flower(row)}"), "column 3"),
        (lines(lambda row: f"name{row};{row},5;{row % 3}", "name;price;group\n"), "group"),
        (lines(lambda row: f"{row * 31},{row % 3},{row}.5", "target,group,price\n"), "group"),
        (lines(lambda row: f"{row},0.{row + 1},1.5,{flower(row)}", ",length,width,species\n"), "species"),
    ],
)
def test_a_label_of_a_class_for_every_row_is_refused(cache: Path, tmp_path: Path, content: str, likely: str) -> None:
    sentence = refused(tmp_path / "own.csv", content)
    assert f"'{likely}'" in sentence and f"--label {likely.removeprefix('column ')}" in sentence
    prepared = prepare(tmp_path / "own.csv", label=likely.removeprefix("column "))
    assert columns(prepared).label == likely and columns(prepared).label_choice == "asked"


@pytest.mark.parametrize("label", ["id", "1", "column 1"])
def test_a_label_that_is_asked_for_may_not_be_different_in_every_row(cache: Path, tmp_path: Path, label: str) -> None:
    text = lines(lambda row: f"{row},{row % 9},{flower(row)}", "id,a,species\n")
    assert "'species'" in refused(tmp_path / "own.csv", text, label=label)


@pytest.mark.parametrize(
    ("header", "settings", "label", "numbers", "left_out"),
    [
        (",a,b,c\n", {"label": "4"}, "c", ("a", "b"), ["column 1"]),
        (",a,b,c\n", {"label": "column 4", "drop": "1"}, "c", ("a", "b"), ["column 1"]),
        (",a,b,c\n", {"label": "c", "drop": "column 1,2"}, "c", ("b",), ["column 1", "a"]),
        ("", {"label": "4", "drop": "1,2"}, "column 4", ("column 3",), ["column 1", "column 2"]),
        ("id,a,,c\n", {"label": "3", "drop": "id"}, "column 3", ("a", "c"), ["id"]),
        ("id,a,,c\n", {"label": "c", "drop": "3,id"}, "c", ("a",), ["id", "column 3"]),
        ("id,a,a,c\n", {"label": "3", "drop": "1"}, "a", ("a", "c"), ["id"]),
    ],
)
def test_columns_are_named_by_number_too(
    cache: Path,
    tmp_path: Path,
    header: str,
    settings: dict[str, str],
    label: str,
    numbers: tuple[str, ...],
    left_out: list[str],
) -> None:
    path = tmp_path / "own.csv"
    path.write_text(lines(lambda row: f"{row},{row % 9},{row % 4},{row % 3}", header))
    table = columns(prepare(path, **settings))
    assert (table.label, table.numbers) == (label, numbers)
    assert sorted(column.name for column in table.left_out) == sorted(left_out)


@pytest.mark.parametrize(
    ("header", "settings", "part"),
    [
        ("id,a,,c\n", {"label": "c", "drop": "id"}, "--drop 3"),  # a nameless feature
        ("id,a,a,c\n", {"label": "a"}, "2, 3"),
        ("label,a,target,c\n", {}, "label, target"),
        ("id,a,b,c\n", {"label": "5"}, "unknown label '5'"),
        ("id,a,b,c\n", {"label": "c", "drop": "0"}, "unknown drop '0'"),
        ("9,a,b,c\n", {"label": "2"}, "unknown label '2'"),  # a name or a number: not known
        ("", {"label": "species"}, "1 to 4"),
    ],
)
def test_columns_that_are_not_there_or_not_clear_are_refused(
    cache: Path, tmp_path: Path, header: str, settings: dict[str, str], part: str
) -> None:
    text = lines(lambda row: f"{row * 3},{row % 9},{row % 4},{row % 3}", header)
    assert part in refused(tmp_path / "own.csv", text, **settings)


@pytest.mark.parametrize("missing", ["", "NA", "n/a", "NaN", "null", "None", "-", "?", "#N/A", "#DIV/0!", ".", "<NA>"])
def test_spellings_of_missing_numbers(cache: Path, tmp_path: Path, missing: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(lines(lambda row: f"{missing if row % 4 == 1 else row},{row % 3}", "a,class\n"))
    prepared = prepare(path)
    (gap,) = columns(prepared).gaps
    assert (gap.name, gap.rows) == ("a", 10)
    rows = np.concatenate([prepared.train_x, prepared.test_x])[:, 0]
    present = [float(row) for row in range(ROWS) if row % 4 != 1]
    assert sorted(set(rows.tolist()) & set(present)) == present


@pytest.mark.parametrize("text", ["0", "setosa", "1.0", "-3", "yes"])
def test_one_class_is_refused(cache: Path, tmp_path: Path, text: str) -> None:
    assert "one class" in refused(tmp_path / "own.csv", lines(lambda row: f"{row}.5,{text}", "a,class\n"))


@pytest.mark.parametrize(
    "rows",
    [(100, 100, 100), (300, 30, 3), (50, 1, 49), (7, 2, 2), (11,) * 20, (1, 1, 30), (500, 5)],
)
def test_every_class_has_its_share_of_the_test_rows(rows: tuple[int, ...]) -> None:
    labels = np.repeat(np.arange(len(rows)), rows).astype(np.int32)
    count = max(1, len(labels) // 10)
    held = draw_rows(labels, count)
    drawn = np.bincount(labels[held], minlength=len(rows))
    assert held.sum() == count
    single = sum(number == 1 for number in rows)
    assert all(abs(part - number / 10) <= 1 + single for part, number in zip(drawn, rows, strict=True))
    assert all(part < number for part, number in zip(drawn, rows, strict=True))
    np.testing.assert_array_equal(held, draw_rows(labels, count))


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".h5"])
def test_rows_sorted_by_class_are_tested_on_all_classes(cache: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"own{suffix}"
    x, y = np.arange(300, dtype=np.float32).reshape(150, 2), np.repeat([0, 1, 2], 50)
    if suffix == ".csv":
        path.write_text("".join(f"{label},{a}.0,{b}.0\n" for label, (a, b) in zip(y, x.astype(int), strict=True)))
    elif suffix == ".npz":
        np.savez(path, x=x, y=y)
    else:
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = x, y
    prepared = prepare(path)
    assert np.bincount(prepared.test_y).tolist() == [5, 5, 5]
    assert (prepared.record.held_out, prepared.record.held_out_seed) == (True, 0)
    for rows, labels in ((prepared.train_x, prepared.train_y), (prepared.test_x, prepared.test_y)):
        np.testing.assert_array_equal(rows[:, 0] // 100, labels)
    assert set(prepared.train_y[:20].tolist()) == {0, 1, 2}  # what SAMPLES=20 trains on
    assert own(prepared).shuffled


def texts(kind: str) -> object:
    words = np.array([flower(row) for row in range(ROWS)])
    return {"U": words, "S": words.astype("S"), "O": words.astype(object), "column": words[:, None], "bytes": words}[
        kind
    ]


ARRAYS: dict[str, Callable[[], dict[str, object]]] = {
    "column order": lambda: {"x": np.asfortranarray(np.arange(120.0).reshape(ROWS, 3)), "y": np.arange(ROWS) % 3},
    "column order, images": lambda: {
        "x": np.asfortranarray((np.arange(ROWS * 24) % 251).astype(np.uint8).reshape(ROWS, 2, 3, 4)),
        "y": np.arange(ROWS) % 3,
    },
    "a transposed array": lambda: {"x": np.arange(120.0).reshape(3, ROWS).T, "y": np.arange(ROWS) % 3},
    "labels in column order": lambda: {
        "x": np.arange(120.0).reshape(ROWS, 3),
        "y": np.asfortranarray((np.arange(ROWS) % 3)[:, None]),
    },
    "texts": lambda: {"x": np.arange(120.0).reshape(ROWS, 3), "y": texts("U")},
    "bytes": lambda: {"x": np.arange(120.0).reshape(ROWS, 3), "y": texts("S")},
    "objects": lambda: {"x": np.arange(120.0).reshape(ROWS, 3), "y": texts("O")},
    "a column of texts": lambda: {"x": np.arange(120.0).reshape(ROWS, 3), "y": texts("column")},
    "texts of two parts": lambda: {
        "x_train": np.arange(120.0).reshape(ROWS, 3),
        "y_train": texts("U"),
        "x_test": np.arange(6.0).reshape(2, 3),
        "y_test": np.array(["virginica", "setosa"]),
    },
    "numbers as objects": lambda: {"x": np.arange(120.0).reshape(ROWS, 3), "y": (np.arange(ROWS) % 3).astype(object)},
    "the other byte order": lambda: {
        "x": np.arange(120.0).reshape(3, ROWS).T.astype(">f8"),
        "y": (np.arange(ROWS) % 3).astype(">i4"),
    },
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_in_every_order_and_with_texts(
    cache: Path, tmp_path: Path, name: str, save: Callable[..., None]
) -> None:
    arrays = ARRAYS[name]()
    path = tmp_path / "own.npz"
    save(path, **arrays)
    prepared = prepare(path)
    given = [(np.asarray(arrays[key]), np.asarray(arrays[key.replace("x", "y")])) for key in arrays if key[0] == "x"]
    x = np.concatenate([rows for rows, _ in given]).astype(np.float32)
    y = np.concatenate([labels.ravel().astype(str) for _, labels in given])
    read_x = np.concatenate([prepared.train_x, prepared.test_x])
    read_y = np.array(own(prepared).class_names)[np.concatenate([prepared.train_y, prepared.test_y])]
    assert sorted((*row.ravel().tolist(), label) for row, label in zip(read_x, read_y, strict=True)) == sorted(
        (*row.ravel().tolist(), label) for row, label in zip(x, y, strict=True)
    )


def test_hdf5_has_texts_as_labels_too(cache: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["x"] = np.arange(120.0).reshape(ROWS, 3)
        file.create_dataset("y", data=[flower(row) for row in range(ROWS)], dtype=h5py.string_dtype())
    prepared = prepare(tmp_path / "own.h5")
    assert own(prepared).class_names == KINDS and own(prepared).class_rows == (14, 13, 13)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([{}] * ROWS),
        np.array([None, *"abc" * 13]),
        np.array(["a", 1] * 20, object),
        np.arange(ROWS).astype("M8[D]"),
        np.arange(ROWS),
        np.zeros((ROWS, 3)),
    ],
)
def test_labels_that_are_no_classes_are_refused(cache: Path, tmp_path: Path, labels: object) -> None:
    np.savez(tmp_path / "own.npz", x=np.arange(120.0).reshape(ROWS, 3), y=labels)  # type: ignore[arg-type]
    with pytest.raises(UserError):
        prepare(tmp_path / "own.npz")


def test_five_lines_say_what_was_understood(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(lines(lambda row: f"{row};{row},5;{'rgb'[row % 3]};{flower(row)}", ";price;colour;species\n"))
    prepared = prepare(path, label="species")
    table = columns(prepared)
    assert (table.separator, table.decimal, table.header) == (";", ",", True)
    assert table.numbers == ("price",) and [(text.name, text.categories) for text in table.texts] == [("colour", 3)]
    assert own(prepared).class_names == KINDS and sum(own(prepared).class_rows) == own(prepared).rows == ROWS
    told = datasets.own_file_lines(prepared.record)
    assert len(told) == 5
    for line, parts in zip(
        told,
        (
            ("40", "semicolon"),
            ("price", "colour"),
            ("'species', 3 classes", "setosa 14"),
            ("column 1",),
            ("4 held out",),
        ),
        strict=True,
    ):
        assert all(part in line for part in parts), line


def test_the_lines_are_told_before_the_training_and_again(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(lines(lambda row: f"{row}.5,{row % 3}", "a,class\n"))
    for _ in range(2):
        shown = CliRunner().invoke(main, ["data", "prepare", str(path)])
        assert shown.exit_code == 0, shown.output
        assert shown.output.splitlines()[:5] == list(datasets.own_file_lines(prepare(path).record))


@pytest.mark.slow
def test_the_lines_are_in_the_record_and_on_the_page(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(lines(lambda row: f"{row},{row}.5,{'rgb'[row % 3]},{flower(row)}", ",price,colour,class\n"))
    data = prepare(path).record
    record = write_run(tmp_path / "s", make_launch(1, 0, 1.0, data=data))
    assert read_run(record).data.own_file == data.own_file
    page = html.unescape(write_report(tmp_path / "s", tmp_path / "reports").read_text())
    assert all(line in page for line in datasets.own_file_lines(data))
