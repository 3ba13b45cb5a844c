"""LIBSVM text, ``label index:value ...``: read by scikit-learn, checked and blamed by line here."""

import bz2
import gzip
import math
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from harness.base.errors import UserError
from harness.datasets.dataset import Block


def read_libsvm(path: Path, features: int, labels: tuple[int, ...]) -> Block:
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
        raise UserError(f"'{path}' is no LIBSVM file ({error}): fetch it again") from error
    except (EOFError, OSError) as error:
        raise UserError(f"'{path}' is a cut or damaged compressed file ({error}): fetch it again") from error
    known = np.isin(raw, labels)
    if not len(raw):
        raise UserError(f"'{path}' has no rows: fetch it again")
    if not known.all() or not np.isfinite(sparse.data).all():
        _blame(path, features, labels)
    dense: Any = sparse.toarray()
    return dense, np.searchsorted(labels, raw)


def _blame(path: Path, features: int, labels: tuple[int, ...]) -> None:
    """Raise the UserError of the first bad line: slow, so only called when something is wrong."""
    with _open(path) as file:
        for number, line in enumerate(_lines(path, file), start=1):
            words = line.partition(b"#")[0].split()
            if not words:
                continue
            fault = _label_fault(words[0], labels) or _index_fault(words[1:], features)
            if fault:
                raise UserError(f"'{path}' line {number:,} {fault}")


def _label_fault(word: bytes, labels: tuple[int, ...]) -> str:
    try:
        good = float(word) in labels
    except ValueError:
        good = False
    return "" if good else f"has label '{_text(word)}': labels are {', '.join(map(str, labels))}"


def _index_fault(words: Iterable[bytes], features: int) -> str:
    previous = 0
    for word in words:
        index, colon, value = word.partition(b":")
        if not colon or not index.isdigit():
            return f"has '{_text(word)}': write index:value"
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
            return f"has value '{_text(value)}' at index {previous}: values are finite numbers"
    return ""


def _text(word: bytes) -> str:
    return word[:40].decode("ascii", "replace")


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".bz2":
        return bz2.open(path, "rb")
    return path.open("rb")


def _lines(path: Path, file: Iterable[bytes]) -> Iterable[bytes]:
    try:
        yield from file
    except (EOFError, OSError) as error:
        raise UserError(f"'{path}' is a cut or damaged compressed file ({error}): fetch it again") from error
