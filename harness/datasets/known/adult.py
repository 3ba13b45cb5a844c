"""Adult (census income): 123 binary features, two classes; LIBSVM's a9a or UCI's CSV, which give the same."""

import csv
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.datasets.dataset import Block, Dataset, DatasetInfo, Download, FoundFiles, Twin, first, last_tenth, packed
from harness.datasets.synthetic import render_groups
from harness.datasets.text import read_libsvm

_UNKNOWN = "?"  # leaves its group without a 1


@dataclass(frozen=True, slots=True)
class Intervals:
    """A column of numbers: `last` has the greatest number of every interval but the highest."""

    last: tuple[int, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# One entry per column of the census: its categories in order, or its intervals.
COLUMNS: tuple[tuple[str, ...] | Intervals, ...] = (
    Intervals((25, 32, 40, 49)),  # age
    _words("Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked"),
    Intervals((106_637, 158_656, 196_337, 259_865)),  # fnlwgt: how many people the row stands for
    _words(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th "
        "10th Doctorate 5th-6th Preschool"
    ),
    Intervals((8, 9, 10, 12)),  # education in years
    _words("Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"),
    _words(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
        "Armed-Forces"
    ),
    _words("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    _words("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    _words("Female Male"),
    Intervals((0,)),  # capital gain
    Intervals((0,)),  # capital loss
    Intervals((34, 39, 40, 47)),  # hours per week
    _words(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece "
        "South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands"
    ),
)
GROUPS = tuple(len(column.last) + 1 if isinstance(column, Intervals) else len(column) for column in COLUMNS)
"""Columns of a9a per column of the census; a row has at most one 1 in each group."""

_LABELS = {"<=50K": 0, ">50K": 1}


def read_census(path: Path) -> Block:
    """Read ``adult.data`` or ``adult.test``: uint8 [rows, 123] of zeros and ones, labels 0 (<=50K) and 1.

    The comment line at the head of ``adult.test``, its labels' final dot and empty lines are passed over.

    Raises:
        UserError: a line has another column count, an unknown category, number or label.
    """
    places: list[list[int]] = []
    labels: list[int] = []
    try:
        with path.open(newline="", encoding="ascii") as file:
            for line, cells in enumerate(csv.reader(file, skipinitialspace=True), start=1):
                if not cells or cells[0].startswith("|"):
                    continue
                try:
                    places.append(_places(cells))
                    labels.append(_label(cells[-1]))
                except ValueError as error:
                    raise UserError(f"'{path}' line {line:,} {error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"'{path}' is no census CSV ({error}): fetch it again") from error
    return _binary(places), np.array(labels, np.int32)


def _binary(rows: Iterable[list[int]]) -> npt.NDArray[np.uint8]:
    rows = list(rows)
    features = np.zeros((len(rows), sum(GROUPS)), np.uint8)
    for row, places in zip(features, rows, strict=True):
        row[places] = 1
    return features


def _places(cells: list[str]) -> list[int]:
    """Return the columns of a9a that are 1 for one line.

    Raises:
        ValueError: a cell fits no column; the message says which.
    """
    if len(cells) != len(COLUMNS) + 1:
        raise ValueError(f"has {len(cells)} columns: the census has {len(COLUMNS) + 1}")
    places, first = [], 0
    for cell, column, size in zip(cells, COLUMNS, GROUPS, strict=False):
        if cell != _UNKNOWN:
            places.append(first + _place(cell, column))
        first += size
    return places


def _place(cell: str, column: tuple[str, ...] | Intervals) -> int:
    if isinstance(column, Intervals):
        if not cell.isdigit():
            raise ValueError(f"has '{cell[:40]}' where a number belongs")
        return bisect_left(column.last, int(cell))
    if cell not in column:
        raise ValueError(f"has unknown category '{cell[:40]}'")
    return column.index(cell)


def _label(cell: str) -> int:
    label = _LABELS.get(cell.removesuffix("."))
    if label is None:
        raise ValueError(f"has label '{cell[:40]}': labels are <=50K and >50K")
    return label


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_FEATURES = 123
_SUFFIXES = (".gz", ".bz2")

INFO = DatasetInfo(
    name="adult",
    title="Adult (a9a)",
    features=(_FEATURES,),
    classes=2,
    dtype="uint8",
    default_model="dnn",
    train_rows=32_561,
    test_rows=16_281,
    source="Becker, Kohavi: Adult, UCI 1996; binary features a9a by Platt, LIBSVM data page",
    standardise="none",
    value_range=(0, 1),
    shares=(24_720 / 32_561, 7_841 / 32_561),
    train_counts=(24_720, 7_841),
    test_counts=(12_435, 3_846),
    twin_rows=32_561,
    downloads=(
        Download(
            url=f"{_LIBSVM}/a9a",
            bytes=2329875,
            sha256="f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
        ),
        Download(
            url=f"{_LIBSVM}/a9a.t",
            bytes=1164628,
            sha256="1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
        ),
    ),
)


def find(folder: Path) -> FoundFiles:
    """Return the LIBSVM files in `folder`, else UCI's."""
    train = first(folder, INFO.name, (*packed("a9a", suffixes=_SUFFIXES), "adult.data"))
    test = first(folder, INFO.name, (*packed("a9a.t", suffixes=_SUFFIXES), "adult.test"))
    if train is None:
        return FoundFiles(missing=("a9a",))
    return FoundFiles(train=(train,), test=(test,) if test else ())


def read(paths: tuple[Path, ...], part: str) -> Iterator[Block]:
    """Yield one block, uint8 [rows, 123] of zeros and ones, and labels 0 (-1 or <=50K in the file) and 1.

    Raises:
        UserError: a line is bad, or a value is not 0 or 1.
    """
    for path in paths:
        yield read_census(path) if path.name.startswith("adult.") else _read_a9a(path)


def _read_a9a(path: Path) -> Block:
    values, labels = read_libsvm(path, _FEATURES, (-1, 1))
    wrong = np.argwhere((values != 0) & (values != 1))
    if len(wrong):
        row, column = wrong[0]
        raise UserError(
            f"'{path}' row {row + 1:,} has value {values[row, column]} at index {column + 1}: a9a's are 0 or 1"
        )
    return values.astype(np.uint8), labels


DATASET = Dataset(
    info=INFO,
    find=find,
    read=read,
    hold_out=last_tenth,
    twin=Twin(render=render_groups(GROUPS), latent=8, separation=2.0),
)
