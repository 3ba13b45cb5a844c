"""What a data set is to the harness: facts, where its files are, how they are read, how its stand-in is made.

Its arrays: .npy files that grow block by block, and the standardisation of their features.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

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
    test part. `block_rows` rows share one random stream, so it is part of the stand-in's identity. `separation` is the
    distance between class centres in latent standard deviations. `patch` repeats each score over squares of
    that many pixels.
    """

    render: Callable[[npt.NDArray[np.float32], np.random.Generator], Array]
    rows: int
    block_rows: int = 65_536
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

    The files come in one of `forms`, or `search` finds them below a data folder. `read` yields the blocks of part
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
    read: Callable[[tuple[Path, ...], str], Iterator[Block]] = lambda paths, part: iter(())
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
        parts = [(form, [first(folder, self.name, paths) for paths in form.train]) for form in self.forms]
        for form, train in parts:
            if all(train):
                test = [first(folder, self.name, paths) for paths in form.test]
                return FoundFiles(train=tuple(filter(None, train)), test=tuple(filter(None, test)) if all(test) else ())
        if not parts:
            return FoundFiles(missing=("its files",))
        published = {file.name for file in self.downloads}
        started = [part for part in parts if any(part[1])]
        offered = [part for part in parts if published.intersection(*part[0].train[:1])]
        form, train = (started + offered + parts)[0]
        absent = (paths for paths, path in zip(form.train, train, strict=True) if path is None)
        return FoundFiles(missing=tuple(next(filter(published.__contains__, paths), paths[0]) for paths in absent))

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


_BLOCK_BYTES = 16 << 20


class NpyWriter:
    """Writes rows of `dtype` and shape `features` to `path`; the row count is put in when it is closed."""

    def __init__(self, path: Path, dtype: str, features: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.features = features
        self.rows = 0
        self._file = path.open("wb")
        self._header()

    def append(self, block: Array) -> None:
        """Write the rows of `block`, [rows, *features], of the file's kind of numbers."""
        assert block.shape[1:] == self.features, (block.shape, self.features)
        assert np.can_cast(block.dtype, self.dtype, "same_kind"), (block.dtype, self.dtype)  # 0.7 is not a byte
        self._file.write(np.ascontiguousarray(block, self.dtype).data)  # tofile() would hide the errno
        self.rows += len(block)

    def __enter__(self) -> "NpyWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if error is None:
                self._file.seek(0)
                self._header()

    def _header(self) -> None:
        # numpy pads the header so that the first axis can grow without moving the data.
        fields = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, *self.features)}
        np.lib.format.write_array_header_1_0(self._file, fields)


def read_blocks(path: Path, rows: int) -> Iterator[Array]:
    """Yield the first `rows` rows of a .npy file in blocks of some megabytes."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        features = shape[1:]
        size = int(np.prod(features, dtype=np.int64))
        step = max(1, _BLOCK_BYTES // max(1, size * dtype.itemsize))
        for start in range(0, rows, step):
            yield np.fromfile(file, dtype, min(step, rows - start) * size).reshape(-1, *features)


Vector = npt.NDArray[np.float32]


def shift_and_factor(blocks: Iterable[Array], features: tuple[int, ...], standardise: str) -> tuple[Vector, Vector]:
    """Return `shift` and `factor`, float32, so that (x - shift) * factor is standardised over the `blocks`.

    A block is [rows, *features]. `standardise` is ``channel`` (over rows and all axes but the last; both
    have the last axis' length), ``feature`` (over rows; both have a row's shape) or ``none`` (0 and 1). A
    feature that never varies has factor 1. In float64, block by block (Chan, Golub, LeVeque 1979).
    """
    if standardise == "none":
        return np.zeros(features, np.float32), np.ones(features, np.float32)
    result = features[-1:] if standardise == "channel" else features
    size = int(np.prod(result))
    count, mean, squares = 0, np.zeros(size), np.zeros(size)
    for rows in blocks:
        block = rows.reshape(-1, size).astype(np.float64)
        block_mean = block.mean(axis=0)
        delta = block_mean - mean
        total = count + len(block)
        block -= block_mean
        squares += np.einsum("ij,ij->j", block, block) + delta**2 * (count * len(block) / total)
        mean += delta * (len(block) / total)
        count = total
    deviation = np.sqrt(squares / count)
    # float32 rounds a constant to about 1e-7 of its size: less than that is not variation.
    constant = deviation <= 1e-7 * np.abs(mean)
    factor = np.where(constant, 1.0, 1.0 / np.where(constant, 1.0, deviation))
    return mean.astype(np.float32).reshape(result), factor.astype(np.float32).reshape(result)
