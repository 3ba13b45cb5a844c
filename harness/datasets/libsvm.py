"""Numbers from LIBSVM text, through scikit-learn."""

import bz2
import contextlib
import gzip
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.datasets.csv_rows import _CUT
from harness.datasets.dataset import Chunk


def read_libsvm_files(
    paths: tuple[Path, ...], part: str, *, features: int, labels: tuple[int, ...], binary: bool = False
) -> Iterator[Chunk]:
    """Yield each LIBSVM file as one chunk: float32 [rows, features], uint8 of zeros and ones if `binary`, and labels.

    Raises:
        UserError: a line is bad, or a value is not 0 or 1 where all must be.
    """
    for path in paths:
        values, classes = read_libsvm(path, features, labels)
        wrong = np.argwhere((values != 0) & (values != 1))
        if binary and len(wrong):
            row, column = wrong[0]
            raise UserError(
                f"'{path}' row {row + 1:,} has value {values[row, column]} at index {column + 1}: values are 0 or 1"
            )
        yield values.astype(np.uint8) if binary else values, classes


def read_libsvm(path: Path, features: int, labels: tuple[int, ...]) -> Chunk:
    """Read a whole LIBSVM file (plain, .gz or .bz2) as dense float32 [rows, features] and its labels.

    Indices count from 1 and must ascend; `features` is the width whatever the file's highest index is.
    `labels` are the permitted ones, returned as 0, 1, ... in that order.

    Raises:
        UserError: a line has a bad label, index or value (it is named), or the file is cut.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        sparse, raw = load_svmlight_file(str(path), n_features=features, zero_based=False, dtype=np.float32)
    except (ValueError, OverflowError) as error:
        _blame(path, features, labels)
        raise UserError(f"'{path}' is not a LIBSVM file ({error}): fetch it again") from error
    except _CUT as error:
        raise UserError(f"'{path}' is a cut or damaged compressed file ({error}): fetch it again") from error
    if not len(raw):
        raise UserError(f"'{path}' has no rows: fetch it again")
    if not np.isin(raw, labels).all() or not np.isfinite(sparse.data).all():
        _blame(path, features, labels)
    dense: Any = sparse.toarray()
    return dense, np.searchsorted(labels, raw)


def _blame(path: Path, features: int, labels: tuple[int, ...]) -> None:
    """Raise the UserError of the first bad line: slow, so only called when something is wrong."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    try:
        with openers.get(path.suffix, open)(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                words = line.partition(b"#")[0].decode("ascii", "replace").split()
                fault = (_label_fault(words[0], labels) or _index_fault(words[1:], features)) if words else ""
                if fault:
                    raise UserError(f"'{path}' line {number:,} {fault}")
    except _CUT as error:
        raise UserError(f"'{path}' is a cut or damaged compressed file ({error}): fetch it again") from error


def _label_fault(word: str, labels: tuple[int, ...]) -> str:
    with contextlib.suppress(ValueError):
        if float(word) in labels:
            return ""
    return f"has label '{word[:40]}': labels are {', '.join(map(str, labels))}"


def _index_fault(words: Iterable[str], features: int) -> str:
    previous = 0
    for word in words:
        index, colon, value = word.partition(":")
        if not colon or not (index.isascii() and index.isdigit()):
            return f"has '{word[:40]}': write index:value"
        if not 1 <= int(index) <= features:
            return f"has index {int(index)}: indices are 1 to {features}"
        if int(index) <= previous:
            return f"has index {int(index)} after {previous}: indices must ascend"
        previous = int(index)
        try:
            finite = math.isfinite(float(value))
        except ValueError:
            finite = False
        if not finite:
            return f"has value '{value[:40]}' at index {previous}: values are finite numbers"
    return ""
