"""Test rows of a file that has no test part: drawn by a seed, the same share of every class."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.datasets.dataset import NpyWriter, read_blocks

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


def move_to_end(path: Path, held: npt.NDArray[np.bool_]) -> None:
    """Rewrite the .npy file at `path` so that the rows that are not `held` come first, both parts in their order."""
    ordered = path.with_suffix(".ordered.npy")
    head = np.load(path, mmap_mode="r")
    with NpyWriter(ordered, head.dtype.str, head.shape[1:]) as file:
        for wanted in (~held, held):
            begin = 0
            for block in read_blocks(path, len(held)):
                file.append(block[wanted[begin : begin + len(block)]])
                begin += len(block)
    del head
    ordered.replace(path)
