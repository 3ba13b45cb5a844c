"""What a data set is to the harness: facts, where its files are, how they are read, how its stand-in is made."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Chunk = tuple[Array, Array]
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
class FileForm:
    """A form in which the files of both parts come: for each file the paths that it may have, the preferred first."""

    train: tuple[tuple[str, ...], ...]
    test: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFiles:
    """The files of a data set in a folder. `missing` names the training files that are not there."""

    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StandIn:
    """How the synthetic stand-in of a data set is made: see `harness.datasets.synthetic`.

    `render` turns scores (float32 [rows, prod(features)], about N(0, 1) each) into features of the set's
    range, in place where it can. `rows` is the default size of the training part, `least_test_rows` the smallest
    test part. `chunk_rows` rows share one random stream, so it is part of the stand-in's identity. `separation` is the
    distance between class centres in latent standard deviations. `patch` repeats each score over squares of
    that many pixels.
    """

    render: Callable[[npt.NDArray[np.float32], np.random.Generator], Array]
    rows: int
    chunk_rows: int = 65_536
    latent: int = 8
    separation: float = 2.0
    patch: int = 1
    least_test_rows: int = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A data set. Rows are those of the original; `features` is one row's shape without the batch.

    `dtype` (``uint8`` or ``float32``) is how rows are stored; `value_range` the smallest and largest value.
    `standardise` says over what mean and deviation are taken: each ``channel`` (the last axis), each
    ``feature``, or ``none`` (binary features stay as they are). `shares` is the part of each class in the
    training rows; `train_counts` and `test_counts` are rows per class where they are published;
    `channel_mean` and `channel_std` are of the training rows scaled to 0..1.

    The files come in one of `forms`, or `search` finds them below a data folder. `read` yields the chunks of part
    ``train`` or ``test`` from the files found, and raises UserError naming file and line for bad content.
    `downloads` are the files at their published addresses, `mirrors` the addresses of other folders that have them.
    `small` sets, below 200 MB, are fetched when they are first needed. `separate_test` says that the original has test
    files. Without them the last 1 in `held_out_one_in` rows are held out, at most `most_held_out`.
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
    value_range: tuple[float, float] | None = None
    shares: tuple[float, ...] = ()
    train_counts: tuple[int, ...] = ()
    test_counts: tuple[int, ...] = ()
    channel_mean: tuple[float, ...] = ()
    channel_std: tuple[float, ...] = ()
    downloads: tuple[Download, ...] = ()
    mirrors: tuple[str, ...] = ()
    small: bool = False
    forms: tuple[FileForm, ...] = ()
    search: Callable[[Path], FoundFiles] | None = None
    read: Callable[[tuple[Path, ...], str], Iterator[Chunk]] = lambda paths, part: iter(())
    separate_test: bool = True
    held_out_one_in: int = 10
    most_held_out: int | None = None
    stand_in: StandIn | None = None

    def hold_out(self, rows: int) -> int:
        """Return how many of `rows` rows are held out for test, at least one."""
        return max(1, min(rows // self.held_out_one_in, self.most_held_out or rows))

    def find(self, folder: Path) -> FoundFiles:
        """Return the files in `folder`/name or `folder`: the first of the `forms` whose training files are all there.

        What is `missing` is of a form that is there in part, else of the one that is downloaded.
        """
        if self.search is not None:
            return self.search(folder)
        parts = [(form, self._paths(folder, form.train)) for form in self.forms]
        for form, train in parts:
            if all(train):
                test = self._paths(folder, form.test)
                return FoundFiles(train=tuple(filter(None, train)), test=tuple(filter(None, test)) if all(test) else ())
        if not parts:
            return FoundFiles(missing=("its files",))
        published = {file.name for file in self.downloads}
        started = [part for part in parts if any(part[1])]
        offered = [part for part in parts if published.intersection(*part[0].train[:1])]
        form, train = (started + offered + parts)[0]
        absent = (paths for paths, path in zip(form.train, train, strict=True) if path is None)
        return FoundFiles(missing=tuple(next(filter(published.__contains__, paths), paths[0]) for paths in absent))

    def _paths(self, folder: Path, files: tuple[tuple[str, ...], ...]) -> list[Path | None]:
        """Return where each of a form's files is, None for one that is absent."""
        return [first(folder, self.name, candidates) for candidates in files]

    def sized(self, image_size: int, classes: int) -> "Dataset":
        """Return the set with images of `image_size` pixels a side and `classes` classes; 0 for a set without sizes."""
        if not image_size:
            return self
        return replace(self, features=(image_size, image_size, 3), classes=classes, shares=(1 / classes,) * classes)


def first(folder: Path, name: str, candidates: Iterable[str]) -> Path | None:
    """Return the first of `candidates` (relative paths) that is a file in `folder`/`name` or `folder`, or None."""
    names = tuple(candidates)
    paths = (base / candidate for base in (folder / name, folder) for candidate in names)
    return next((path for path in paths if path.is_file()), None)


def packed(name: str, *suffixes: str) -> tuple[str, ...]:
    """Return `name` as it is and with the suffixes of compressed files."""
    return (name, *(name + suffix for suffix in suffixes))
