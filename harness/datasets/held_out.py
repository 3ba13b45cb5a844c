"""Test rows of a file that has no test part: drawn by a seed, the same share of every class."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.removal import replace_file
from harness.datasets.npy_files import NpyWriter

_CHUNK_BYTES = 16 << 20
SEED = 0
"""It is the same for every launch, whatever its ranks and its own seed: all are tested on the same rows."""


def draw_rows(labels: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.bool_]:
    """Return which of the rows, with `labels` 0 to k-1, are the `count` test rows.

    Every class has its share, rounded so that the sum is `count`; a class of one row keeps it to train on.
    """
    rows = np.bincount(labels)
    exact = count * rows / len(labels)
    drawn = np.floor(exact).astype(np.int64)
    most = np.where(rows > 1, rows - 1, 0)
    drawn = np.minimum(drawn, most)
    for place in np.argsort(drawn - exact, kind="stable"):
        if drawn.sum() < count and drawn[place] < most[place]:
            drawn[place] += 1
    short = count - int(drawn.sum())
    if short:  # classes of one row have nothing to give: the largest classes do
        for place in np.argsort(-rows, kind="stable"):
            more = min(short, int(most[place] - drawn[place]))
            drawn[place] += more
            short -= more
    random = np.random.Generator(np.random.PCG64(SEED))
    held = np.zeros(len(labels), np.bool_)
    for place, part in enumerate(drawn):
        members = np.flatnonzero(labels == place)
        held[random.choice(members, int(part), replace=False)] = True
    return held


def are_sorted(labels: npt.NDArray[np.int32]) -> bool:
    """Return whether rows of one class stand together, so that the first ones are not like all."""
    shares = np.bincount(labels) / len(labels)
    changes = np.count_nonzero(labels[1:] != labels[:-1])
    return bool(2 * changes < (len(labels) - 1) * (1 - np.sum(shares**2)))


def order_rows(labels: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int64]:
    """Return the numbers of all rows: those to train on first, then the `count` test rows.

    Both are in the file's order; where that is sorted by class the rows to train on are in random order, as SAMPLES=
    takes the first and each rank its own part of them.
    """
    held = draw_rows(labels, count)
    train = np.flatnonzero(~held)
    if are_sorted(labels):
        train = np.random.Generator(np.random.PCG64(SEED)).permutation(train)
    return np.concatenate([train, np.flatnonzero(held)])


def reorder(path: Path, order: npt.NDArray[np.int64]) -> None:
    """Rewrite the .npy file at `path` with its rows in this order."""
    ordered = path.with_suffix(".ordered.npy")
    rows = np.load(path, mmap_mode="r")
    step = max(1, _CHUNK_BYTES // max(1, rows[:1].nbytes))
    with NpyWriter(ordered, rows.dtype.str, rows.shape[1:]) as file:
        for start in range(0, len(order), step):
            file.append(rows[order[start : start + step]])
    del rows
    replace_file(ordered, path, "prepared data")
