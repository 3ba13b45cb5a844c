""".npy files that grow chunk by chunk, and the standardisation of their features."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from harness.datasets.dataset import Array

_CHUNK_BYTES = 16 << 20


class NpyWriter:
    """Writes rows of `dtype` and shape `features` to `path`; the row count is put in when it is closed."""

    def __init__(self, path: Path, dtype: str, features: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.features = features
        self.rows = 0
        self._file = path.open("wb")
        self._header()

    def append(self, chunk: Array) -> None:
        """Write the rows of `chunk`, [rows, *features], of the file's kind of numbers."""
        assert chunk.shape[1:] == self.features, (chunk.shape, self.features)
        assert np.can_cast(chunk.dtype, self.dtype, "same_kind"), (chunk.dtype, self.dtype)  # 0.7 is not a byte
        self._file.write(np.ascontiguousarray(chunk, self.dtype).data)  # tofile() would hide the errno
        self.rows += len(chunk)

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


def read_chunks(path: Path, rows: int) -> Iterator[Array]:
    """Yield the first `rows` rows of a .npy file in chunks of some megabytes."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        features = shape[1:]
        size = int(np.prod(features, dtype=np.int64))
        step = max(1, _CHUNK_BYTES // max(1, size * dtype.itemsize))
        for start in range(0, rows, step):
            yield np.fromfile(file, dtype, min(step, rows - start) * size).reshape(-1, *features)


Vector = npt.NDArray[np.float32]


def shift_and_factor(chunks: Iterable[Array], features: tuple[int, ...], standardise: str) -> tuple[Vector, Vector]:
    """Return `shift` and `factor`, float32, so that (x - shift) * factor is standardised over the `chunks`.

    A chunk is [rows, *features]. `standardise` is ``channel`` (over rows and all axes but the last; both
    have the last axis' length), ``feature`` (over rows; both have a row's shape) or ``none`` (0 and 1). A
    feature that never varies has factor 1. In float64, chunk by chunk (Chan, Golub, LeVeque 1979).
    """
    if standardise == "none":
        return np.zeros(features, np.float32), np.ones(features, np.float32)
    result = features[-1:] if standardise == "channel" else features
    size = int(np.prod(result))
    count = 0
    mean = np.zeros(size)
    squares = np.zeros(size)
    for rows in chunks:
        chunk = rows.reshape(-1, size).astype(np.float64)
        chunk_mean = chunk.mean(axis=0)
        delta = chunk_mean - mean
        total = count + len(chunk)
        chunk -= chunk_mean
        squares += np.einsum("ij,ij->j", chunk, chunk) + delta**2 * (count * len(chunk) / total)
        mean += delta * (len(chunk) / total)
        count = total
    deviation = np.sqrt(squares / count)
    # float32 rounds a constant to about 1e-7 of its size: less than that is not variation.
    constant = deviation <= 1e-7 * np.abs(mean)
    factor = np.where(constant, 1.0, 1.0 / np.where(constant, 1.0, deviation))
    return mean.astype(np.float32).reshape(result), factor.astype(np.float32).reshape(result)
