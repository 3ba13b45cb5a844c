"""Arrays for training: .npy files that grow block by block, and the standardisation of their features."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from harness.datasets.dataset import Array

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
