"""A user's own data: arrays of an .npz or .h5 file, or the columns of a .csv file."""

from collections.abc import Iterator
from pathlib import Path

from harness.datasets.dataset import Chunk, Dataset
from harness.datasets.own_arrays import ArrayFile

FILE = "file"
"""The name of a user's own file among the data sets."""
CSV = ".csv"
SUFFIXES = (CSV, ".npz", ".h5")


def _read(paths: tuple[Path, ...], part: str) -> Iterator[Chunk]:
    yield from ArrayFile().read(paths, part)


OWN_FILE = Dataset(
    name=FILE,
    title="a file of your own",
    features=(),
    classes=0,
    dtype="float32",
    default_model="dnn",
    train_rows=0,
    test_rows=0,
    source="the user",
    read=_read,
    separate_test=False,
)
