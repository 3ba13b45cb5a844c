"""Labels of a user's own file, whole numbers or texts, as classes 0 to k-1."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.datasets.dataset import Array

_LEAST_ROWS = 10  # fewer show nothing


def whole_numbers(path: Path, labels: Array, where: str, start: int) -> Array:
    """Return the labels as int64; they may come as floating point numbers but must be whole.

    Raises:
        UserError: one is not whole; `where` and its number, counted from `start`, are named.
    """
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    wrong = np.flatnonzero(whole != labels)
    if len(wrong):
        place = f"{where} {start + wrong[0]:,}"
        raise UserError(f"'{path}' {place} has label {labels[wrong[0]]}: labels are whole numbers, one per class")
    return whole


def are_different(classes: int, rows: int) -> bool:
    """Return whether labels are different in nearly every row, so that they are no classes."""
    return rows >= _LEAST_ROWS and 2 * classes > rows


class LabelTexts:
    """The texts of labels by their numbers, which are those of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def encode(self, labels: Array) -> npt.NDArray[np.int64]:
        """Return the numbers of `labels`, texts or bytes of UTF-8."""
        words = [label.decode() if isinstance(label, bytes) else str(label) for label in labels.tolist()]
        return np.array([self._numbers.setdefault(word, len(self._numbers)) for word in words], np.int64)

    @property
    def classes(self) -> tuple[str, ...]:
        """The texts by their numbers."""
        return tuple(self._numbers)
