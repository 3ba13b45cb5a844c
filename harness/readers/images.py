"""Rows that are images in files: each rank decodes its own."""

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.cores import memory_limit, usable_cores
from harness.base.errors import UserError
from harness.datasets.dataset import Array

_EDGE = 1 / 16  # left out on every side: the middle 224 of 256 pixels


class ImageRows:
    """Images by their places in containers (`datasets.Prepared`): uint8 [rows, size, size, 3], their middle squares."""

    def __init__(
        self, files: npt.NDArray[np.bytes_], places: Array, labels: npt.NDArray[np.int32], size: int, classes: int
    ) -> None:
        self._files = files
        self._places = places
        self._labels = labels
        self._size = size
        self.classes: int | None = classes

    @property
    def blocks(self) -> tuple[int, ...]:
        """One block: all images, whose order mixes the classes."""
        return (len(self._places),)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Decode the images of the one range, a thread for each of the rank's cores.

        Raises:
            UserError: they do not fit into memory, where a script has them as float32.
        """
        (rows,) = ranges
        shape = (len(rows), self._size, self._size, 3)
        needed, free = 4 * int(np.prod(shape, dtype=np.int64)), memory_limit()
        if needed > free:
            raise UserError(
                f"{len(rows):,} images of {self._size} pixels a side take {needed / 2**30:.1f} GiB on this rank, "
                f"{free / 2**30:.1f} GiB are free: use more nodes or a smaller image_size"
            )
        x = np.empty(shape, np.uint8)

        def decode(number: int) -> None:
            x[number] = self._image(self._places[rows.start + number])

        with ThreadPoolExecutor(usable_cores()) as threads:
            for _ in threads.map(decode, range(len(rows))):  # a thread's error comes out here
                pass
        return x, np.asarray(self._labels[rows.start : rows.stop])

    def _image(self, place: npt.NDArray[np.int64]) -> Array:
        from PIL import Image, ImageOps

        number, offset, size = map(int, place)
        with Path(bytes(self._files[number]).decode()).open("rb") as file:
            content = os.pread(file.fileno(), size, offset)
        with Image.open(io.BytesIO(content)) as picture:
            square = ImageOps.fit(picture.convert("RGB"), (self._size, self._size), Image.Resampling.BILINEAR, _EDGE)
        return np.asarray(square)
