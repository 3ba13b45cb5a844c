"""Readers of the original files of data sets: IDX, batches of CIFAR, LIBSVM text."""

import bz2
import contextlib
import gzip
import io
import math
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.datasets.csv_rows import CUT_ERRORS
from harness.datasets.dataset import Array, Chunk
from harness.datasets.safe_reading import ArrayUnpickler, readable


def read_idx(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes with `dims` dimensions, gzip-compressed or not.

    Raises:
        UserError: the file is damaged, of another kind, or shorter or longer than its header says.
    """
    with readable(path, "gzip file", "fetch it again"):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    magic = 0x08 << 8 | dims  # unsigned bytes
    header = 4 + 4 * dims
    if len(content) < header:
        raise UserError(f"'{path}' is cut: {len(content)} bytes are less than an IDX header; fetch it again")
    start = int.from_bytes(content[:4], "big")
    if start != magic:
        raise UserError(f"'{path}' starts with 0x{start:08x}, not the IDX magic number 0x{magic:08x}: fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=dims, offset=4))
    expected = header + math.prod(shape)
    if len(content) != expected:
        state = "cut" if len(content) < expected else "too long"
        raise UserError(
            f"'{path}' is {state}: its header promises {expected:,} bytes, it has {len(content):,}; fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_idx_pair(paths: tuple[Path, ...], part: str, *, shape: tuple[int, int], classes: int) -> Iterator[Chunk]:
    """Yield one chunk, uint8 [rows, *shape, 1] and labels, from an images and a labels file.

    Raises:
        UserError: a file is damaged, the two differ in count, or an image or a label is out of range.
    """
    if not paths:
        return
    image_path, label_path = paths
    images = read_idx(image_path, dims=3)
    labels = read_idx(label_path, dims=1)
    if images.shape[1:] != shape:
        raise UserError(f"'{image_path}' has images of shape {images.shape[1:]}, not {shape}: fetch it again")
    if len(images) != len(labels):
        raise UserError(
            f"'{image_path}' has {len(images):,} images but '{label_path}' {len(labels):,} labels: fetch both again"
        )
    yield images[..., np.newaxis], _checked_labels(str(label_path), labels, classes)


def _checked_labels(name: str, labels: Array, classes: int) -> Array:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise UserError(f"'{name}' row {wrong[0] + 1:,} has label {labels[wrong[0]]}: labels are 0 to {classes - 1}")
    return labels


_CIFAR_PIXELS = 32 * 32 * 3


def read_cifar(
    paths: tuple[Path, ...],
    part: str,
    *,
    members: Mapping[str, tuple[str, ...]],
    classes: int,
    label_bytes: int = 1,
    key: bytes = b"labels",
) -> Iterator[Chunk]:
    """Yield the batches of CIFAR's binary or Python files: uint8 [rows, 32, 32, 3] and labels 0 to `classes` - 1.

    A path is one batch, or a tar archive of which the `members` of the part are read. The label is the last of
    `label_bytes` bytes before a row's pixels, or in the pickled list called `key`.

    Raises:
        UserError: a batch is cut or damaged, not in the archive, or has a label out of range.
    """
    for path in paths:
        python = "python" in path.name or path.suffix == ""
        for name, content in _batches(path, [member if python else f"{member}.bin" for member in members[part]]):
            if python:
                pixels, labels = _pickled_batch(name, content, key)
            else:
                pixels, labels = _binary_batch(name, content, label_bytes)
            images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            yield images, _checked_labels(name, labels, classes)


def _pickled_batch(name: str, content: bytes, key: bytes) -> tuple[Array, Array]:
    """Return pixels [rows, 3072] and labels of a batch in CIFAR's Python form."""
    with readable(name, "CIFAR Python batch", "fetch it again"):
        batch: dict[bytes, Any] = ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        pixels = np.asarray(batch[b"data"], np.uint8)
        labels = np.asarray(batch[key])
    if pixels.ndim != 2 or pixels.shape[1] != _CIFAR_PIXELS or len(pixels) != len(labels):
        raise UserError(f"'{name}' has images {pixels.shape} and {len(labels):,} labels: fetch it again")
    return pixels, labels


def _binary_batch(name: str, content: bytes, label_bytes: int) -> tuple[Array, Array]:
    """Return pixels [rows, 3072] and labels of a batch in CIFAR's binary form."""
    size = label_bytes + _CIFAR_PIXELS
    if not content or len(content) % size:
        rows = f"{len(content):,} bytes are not whole rows of {size:,}"
        raise UserError(f"'{name}' is cut: {rows}; fetch it again")
    table = np.frombuffer(content, np.uint8).reshape(-1, size)
    return table[:, label_bytes:], table[:, label_bytes - 1]


def _batches(path: Path, members: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield a name for messages and the content of the file, or of each of the archive's `members`."""
    if not path.name.endswith(".tar.gz"):
        yield str(path), path.read_bytes()
        return
    contents = dict.fromkeys(members, b"")
    with readable(path, "archive", "fetch it again"), tarfile.open(path, "r|gz") as archive:
        for member in archive:  # one pass: a gzip file cannot be searched
            name = Path(member.name).name
            file = archive.extractfile(member) if name in contents else None
            if file is not None:
                contents[name] = file.read()
    yield from ((f"{path}/{name}", content) for name, content in contents.items())


# Numbers from LIBSVM text, through scikit-learn.


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
        except CUT_ERRORS as error:
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
        except CUT_ERRORS as error:
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
