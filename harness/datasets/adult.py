"""Adult (census income): 123 binary features, two classes; LIBSVM's a9a or UCI's CSV, which give the same."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.datasets.census import GROUPS, read_census
from harness.datasets.dataset import Block, Dataset, DatasetInfo, Download, Found, Twin, last_tenth
from harness.datasets.find import first, packed
from harness.datasets.libsvm import read_libsvm
from harness.datasets.synthetic import render_groups
from harness.errors import UserError

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


def find(folder: Path) -> Found:
    """Return the LIBSVM files in `folder`, else UCI's."""
    train = first(folder, INFO.name, (*packed("a9a", suffixes=_SUFFIXES), "adult.data"))
    test = first(folder, INFO.name, (*packed("a9a.t", suffixes=_SUFFIXES), "adult.test"))
    if train is None:
        return Found(missing=("a9a",))
    return Found(train=(train,), test=(test,) if test else ())


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
