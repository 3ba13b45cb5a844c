"""Numbers from LIBSVM text, through scikit-learn."""

import bz2
import contextlib
import gzip
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.datasets.csv_rows import _CUT
from harness.datasets.dataset import Chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class LibsvmFiles:
    """Reads files of `features` columns, whatever a file's highest index is; indices count from 1 and must ascend.

    `labels` are the permitted ones, returned as 0, 1, ... in that order. With `binary` all values are 0 or 1.
    """

    features: int
    labels: tuple[int, ...]
    binary: bool = False

    def read_files(self, paths: tuple[Path, ...], part: str) -> Iterator[Chunk]:
        """Yield each file as one chunk: float32 [rows, features], uint8 of zeros and ones if `binary`, and labels.

        Raises:
            UserError: a line is bad, or a value is not 0 or 1 where all must be.
        """
        for path in paths:
            values, classes = self.read(path)
            wrong = np.argwhere((values != 0) & (values != 1))
            if self.binary and len(wrong):
                row, column = wrong[0]
                raise UserError(
                    f"'{path}' row {row + 1:,} has value {values[row, column]} at index {column + 1}: values are 0 or 1"
                )
            yield values.astype(np.uint8) if self.binary else values, classes

    def read(self, path: Path) -> Chunk:
        """Read a whole file (plain, .gz or .bz2) as dense float32 [rows, features] and its labels.

        Raises:
            UserError: a line has a bad label, index or value (it is named), or the file is cut.
        """
        from sklearn.datasets import load_svmlight_file

        try:
            sparse, raw = load_svmlight_file(str(path), n_features=self.features, zero_based=False, dtype=np.float32)
        except (ValueError, OverflowError) as error:
            self._blame(path)
            raise UserError(f"'{path}' is not a LIBSVM file ({error}): fetch it again") from error
        except _CUT as error:
            raise UserError(f"'{path}' is a cut or damaged compressed file ({error}): fetch it again") from error
        if not len(raw):
            raise UserError(f"'{path}' has no rows: fetch it again")
        if not np.isin(raw, self.labels).all() or not np.isfinite(sparse.data).all():
            self._blame(path)
        dense: Any = sparse.toarray()
        return dense, np.searchsorted(self.labels, raw)

    def _blame(self, path: Path) -> None:
        """Raise the UserError of the first bad line: slow, so only called when something is wrong."""
        openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
        try:
            with openers.get(path.suffix, open)(path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    words = line.partition(b"#")[0].decode("ascii", "replace").split()
                    fault = (self._label_fault(words[0]) or self._index_fault(words[1:])) if words else ""
                    if fault:
                        raise UserError(f"'{path}' line {number:,} {fault}")
        except _CUT as error:
            raise UserError(f"'{path}' is a cut or damaged compressed file ({error}): fetch it again") from error

    def _label_fault(self, word: str) -> str:
        with contextlib.suppress(ValueError):
            if float(word) in self.labels:
                return ""
        return f"has label '{word[:40]}': labels are {', '.join(map(str, self.labels))}"

    def _index_fault(self, words: Iterable[str]) -> str:
        previous = 0
        for word in words:
            index, colon, value = word.partition(":")
            if not colon or not (index.isascii() and index.isdigit()):
                return f"has '{word[:40]}': write index:value"
            if not 1 <= int(index) <= self.features:
                return f"has index {int(index)}: indices are 1 to {self.features}"
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
