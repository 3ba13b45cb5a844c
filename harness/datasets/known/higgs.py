"""HIGGS: 28 kinematic features of simulated collisions, signal or background, 8 GB of CSV."""

from collections.abc import Iterator
from pathlib import Path

from harness.datasets.dataset import Block, Dataset, DatasetInfo, Download, FoundFiles, Twin, first
from harness.datasets.synthetic import render_collisions
from harness.datasets.text import read_numbers

_FEATURES = 28
_ROWS = 11_000_000
_TEST_ROWS = 100_000
_SIGNAL = 0.53

INFO = DatasetInfo(
    name="higgs",
    title="HIGGS",
    features=(_FEATURES,),
    classes=2,
    dtype="float32",
    default_model="dnn",
    train_rows=_ROWS - _TEST_ROWS,
    test_rows=_TEST_ROWS,
    source="Baldi, Sadowski, Whiteson: Searching for exotic particles, Nature Communications 5, 2014; UCI",
    separate_test=False,
    shares=(1 - _SIGNAL, _SIGNAL),
    twin_rows=1_000_000,
    downloads=(
        Download(
            url="https://archive.ics.uci.edu/ml/machine-learning-databases/00280/HIGGS.csv.gz",
            bytes=2816407858,
            sha256="ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698",
        ),
    ),
)


def find(folder: Path) -> FoundFiles:
    """Return the one CSV file in `folder`: the whole set, else the largest piece of it."""
    whole = first(folder, INFO.name, ("HIGGS.csv", "HIGGS.csv.gz"))
    if whole is not None:
        return FoundFiles(train=(whole,))
    for base in (folder / INFO.name, folder):
        pieces = [path for pattern in ("HIGGS*.csv", "HIGGS*.csv.gz") for path in base.glob(pattern) if path.is_file()]
        if pieces:
            return FoundFiles(train=(max(pieces, key=lambda path: (path.stat().st_size, path.name)),))
    return FoundFiles(missing=("HIGGS.csv.gz",))


def read(paths: tuple[Path, ...], part: str) -> Iterator[Block]:
    """Yield blocks, float32 [rows, 28], and labels 0 and 1; there is no test file, so the test part is empty.

    Raises:
        UserError: a line has another column count, is no number, is NaN, or has another label.
    """
    for path in paths:
        yield from read_numbers(path, _FEATURES, classes=2)


def hold_out(rows: int) -> int:
    """Return the test rows: the last 100,000 (paper A, section 4.6), of a smaller file at most a fifth."""
    return max(1, min(_TEST_ROWS, rows // 5))


DATASET = Dataset(
    info=INFO,
    find=find,
    read=read,
    hold_out=hold_out,
    twin=Twin(render=render_collisions, latent=8, separation=0.9),
)
