"""A CSV file of the user's own with texts, missing values, a named label and columns to leave out."""

from pathlib import Path

import numpy as np
import pytest

from harness import datasets
from harness.base.errors import UserError
from harness.datasets.prepare import draw_rows
from harness.schema.workload import Workload
from tests.labs.sentences import refuses


def own(path: Path, text: str, label: str | None = None, drop: str | None = None) -> datasets.Prepared:
    """Write `text` to `path` and prepare it."""
    path.write_text(text)
    workload = Workload(dataset="file", model="dnn", batch_per_rank=4, data_file=str(path), label=label, drop=drop)
    return datasets.prepare(datasets.locate(workload, None))


def rows(count: int) -> str:
    """Return a table: a number, a colour, a size whose fourth value of five is missing, an income, an identity."""
    colours = ("red", "green", " blue", "?")
    lines = [
        f"{row % 7}, {colours[row % 4]},{'' if row % 5 == 3 else row % 5},{'<=50K' if row % 3 else '>50K'},id{row}"
        for row in range(count)
    ]
    return "\n".join(["Age, colour,size,Income,id", *lines])


def held_out(prepared: datasets.Prepared) -> set[int]:
    """Return the rows of `rows` that are held out, of which every income has its share."""
    income = np.array([row % 3 == 0 for row in range(40)], np.int32)
    return set(np.flatnonzero(draw_rows(income, len(prepared.test_x))).tolist())


def test_texts_are_categories_and_what_is_missing_is_filled_in(cache: Path, tmp_path: Path) -> None:
    prepared = own(tmp_path / "own.csv", rows(40), label="income", drop="id")
    assert prepared.train_x.shape == (36, 5) and prepared.train_x.dtype == np.float32
    # age; blue, green, red; size. The mean is of the training rows alone.
    kinds = ([0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0])
    train = [row for row in range(40) if row not in held_out(prepared)]
    mean = np.mean([row % 5 for row in train if row % 5 != 3])
    for place, row in enumerate(train):
        size = mean if row % 5 == 3 else row % 5
        np.testing.assert_allclose(prepared.train_x[place], [row % 7, *kinds[row % 4], size], rtol=1e-6)
        assert prepared.train_y[place] == (row % 3 == 0)
    assert prepared.record.classes == 2
    for part in ("labels <=50K, >50K", "left out of own.csv: id", "colour (3)", "colour 10 (no category)", "size 8 ("):
        assert part in prepared.record.note


def test_two_ways_to_read_one_file_are_two_preparations(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    first = own(path, rows(40), label="income", drop="id")
    second = own(path, rows(40), label="income", drop="id,size")
    assert first.folder != second.folder and second.train_x.shape == (36, 4)


def test_blocks_of_a_large_file_share_their_categories(cache: Path, tmp_path: Path) -> None:
    """More than one block of text: places among the categories are those of the whole file."""
    names = [f"name{row * 7919 % 900:04}" for row in range(120_000)]
    text = "\n".join(["name,label", *(f"{name},{row % 2}" for row, name in enumerate(names))])
    assert len(text) > 1 << 20
    prepared = own(tmp_path / "own.csv", text)
    assert prepared.train_x.shape == (108_000, 900)
    labels = np.arange(120_000, dtype=np.int32) % 2
    train = np.flatnonzero(~draw_rows(labels, 12_000))
    assert [int(row.argmax()) for row in prepared.train_x[-3:]] == [int(names[row][4:]) for row in train[-3:]]
    assert float(np.asarray(prepared.test_x).sum()) == 12_000


@pytest.mark.parametrize(
    ("text", "label", "drop", "part"),
    [
        (rows(20), "incme", "id", "unknown label 'incme': did you mean 'income'"),
        (rows(20), "income", "idd", "unknown drop 'idd'"),
        (rows(20), "income", "id,income", "which is the label"),
        (rows(20), "income", "age,colour,size,id", "leaves no column"),
        ("5,2\n0,3\n", "income", None, "has no header"),
        ("a,a,b\n0,1,2\n1,2,3\n", "a", None, "is the name of 2 columns"),
        ("a,income\n1,x\n2,\n3,y\n", "income", None, "line 3 has no label"),
        ("a,b,label\n,1,0\n,2,1\n5,3,0\n", None, None, "column 'a' is missing in 2 of 3 rows"),
        ("a,label\n1,0\n2,1\n3,0\nx,1\n", None, None, "line 5: invalid value 'x'"),
        ("a,label\n1,0\ninf,1\n", None, None, "line 3 column 1"),
        (
            "id,label\n" + "\n".join(f"n{n},{n % 2}" for n in range(1_001)),
            None,
            None,
            "more than 1,000 different texts",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_column(
    cache: Path, tmp_path: Path, text: str, label: str | None, drop: str | None, part: str
) -> None:
    with pytest.raises(UserError) as caught:
        own(tmp_path / "own.csv", text, label, drop)
    assert part in str(caught.value)


@pytest.mark.parametrize("setting", [{"label": "a"}, {"drop": "a"}])
def test_columns_are_of_tables(cache: Path, tmp_path: Path, setting: dict[str, str]) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((3, 2)), y=np.arange(3))
    for given in ({"dataset": "file", "data_file": str(tmp_path / "own.npz")}, {"dataset": "mnist"}):
        with refuses("is for a table", f"--{next(iter(setting))}"):
            datasets.locate(Workload(model="dnn", batch_per_rank=4, **given, **setting), None)


def test_labels_that_float64_takes_for_one_are_refused(cache: Path, tmp_path: Path) -> None:
    lines = [f"{2**53 + row % 2},{row}.5" for row in range(40)]
    with refuses("own.csv", 2**53, "label"):
        own(tmp_path / "own.csv", "\n".join(["label,a", *lines]))
    smaller = [f"{2**52 + row % 2},{row}.5" for row in range(40)]
    prepared = own(tmp_path / "own.csv", "\n".join(["label,a", *smaller]))
    assert np.unique(prepared.train_y).tolist() == [0, 1]
