"""What a data set is to the harness: facts, where its files are, how they are read, how a twin is made."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def first(folder: Path, name: str, candidates: Iterable[str]) -> Path | None:
    """Return the first of `candidates` (relative paths) that is a file in `folder`/`name` or `folder`, or None."""
    names = tuple(candidates)
    for base in (folder / name, folder):
        for candidate in names:
            if (base / candidate).is_file():
                return base / candidate
    return None


def packed(*names: str, suffixes: tuple[str, ...] = (".gz",)) -> tuple[str, ...]:
    """Return `names` and each of them with the suffixes of compressed files."""
    return tuple(name + suffix for name in names for suffix in ("", *suffixes))


Array = npt.NDArray[Any]
Block = tuple[Array, Array]
"""Some rows: their features [rows, *features] and their labels [rows]."""

TRAIN = "train"
TEST = "test"


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    """One original file: its address, bytes (None if not published) and SHA-256 (None: pinned on first use)."""

    url: str
    bytes: int | None = None
    sha256: str | None = None

    @property
    def name(self) -> str:
        """The file's name, the last part of its address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetInfo:
    """Facts of one data set. Rows are those of the original; `features` is one row's shape without the batch.

    `dtype` (``uint8`` or ``float32``) is how rows are stored; `value_range` the smallest and largest value.
    `standardise` says over what mean and deviation are taken: each ``channel`` (the last axis), each
    ``feature``, or ``none`` (binary features stay as they are). `shares` is the part of each class in the
    training rows; `train_counts` and `test_counts` are rows per class where they are published;
    `channel_mean` and `channel_std` are of the training rows scaled to 0..1. `twin_rows` is the default
    size of the synthetic twin. `separate_test` tells whether the original has test files of its own.
    """

    name: str
    title: str
    features: tuple[int, ...]
    classes: int
    dtype: str
    default_model: str
    train_rows: int
    test_rows: int
    source: str
    standardise: str = "feature"
    separate_test: bool = True
    value_range: tuple[float, float] | None = None
    shares: tuple[float, ...] = ()
    train_counts: tuple[int, ...] = ()
    test_counts: tuple[int, ...] = ()
    channel_mean: tuple[float, ...] = ()
    channel_std: tuple[float, ...] = ()
    twin_rows: int = 0
    downloads: tuple[Download, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFiles:
    """The files of a data set in a folder. `missing` names the training files that are not there."""

    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    missing: tuple[str, ...] = field(default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Twin:
    """How the synthetic twin of a data set is made: see `harness.datasets.synthetic`.

    `render` turns scores (float32 [rows, prod(features)], about N(0, 1) each) into features of the set's
    range, in place where it can. `block_rows` rows share one random stream, so it is part of the twin's
    identity. `separation` is the distance between class centres in latent standard deviations. `patch`
    repeats each score over squares of that many pixels; `noise` is the part of a score that tells nothing.
    `least_test_rows` is the smallest test part, however few the training rows.
    """

    render: Callable[[npt.NDArray[np.float32], np.random.Generator], Array]
    block_rows: int = 65_536
    latent: int = 8
    separation: float = 2.0
    patch: int = 1
    noise: float = 0.5
    least_test_rows: int = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """An entry of the registry.

    `find` looks for the files below a data folder. `read` yields the blocks of part ``train`` or ``test``
    from the files found, and raises UserError naming file and line for bad content. `hold_out` gives the
    number of last rows that become the test part where there is no test file.
    """

    info: DatasetInfo
    find: Callable[[Path], FoundFiles]
    read: Callable[[tuple[Path, ...], str], Iterator[Block]]
    hold_out: Callable[[int], int]
    twin: Twin | None = None


def last_tenth(rows: int) -> int:
    """Return how many of `rows` rows are held out for test: a tenth, at least one."""
    return max(1, rows // 10)


def sized(entry: Dataset, image_size: int, classes: int) -> Dataset:
    """Return `entry` with images of `image_size` pixels a side and so many classes; 0 for a set without sizes."""
    if not image_size:
        return entry
    features, shares = (image_size, image_size, 3), (1 / classes,) * classes
    return replace(entry, info=replace(entry.info, features=features, classes=classes, shares=shares))
