"""A .npy file that grows block by block, so that an array may be larger than memory.

Plain writes and reads, no memory map: on a full disk a write raises an error where a map kills the process, and
pages that were read once do not count as the process's memory.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

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
        """Write the rows of `block`, [rows, *features], converted to the file's dtype."""
        assert block.shape[1:] == self.features, (block.shape, self.features)
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
