"""What a reader reads from: rows by number, shared among the ranks of the MPI world or of this process alone."""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.base.cores import memory_limit, usable_cores
from harness.base.errors import UserError
from harness.datasets.dataset import Array
from harness.datasets.shards import split_evenly

_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """This process's number among `size`, and a way to get every rank's value of something, in order of ranks."""

    rank: int = 0
    size: int = 1
    gather: Callable[[Any], list[Any]] = lambda value: [value]


def find_peers(environment: Mapping[str, str] = os.environ) -> Peers:
    """Return the ranks that a launcher has started; this process alone under TF_MPI_ENABLE=0 or without one.

    Raises:
        UserError: the launcher started ranks that are not in one MPI world.
    """
    started = any(environment.get(name, "").isdigit() and int(environment[name]) > 1 for name in _COUNTS)
    if not started or environment.get("TF_MPI_ENABLE") == "0":
        return Peers()
    from harness.comm.world import check_start, start

    world = start()
    check_start(world.size)
    return Peers(rank=world.rank, size=world.size, gather=lambda value: list(world.comm.allgather(value)))


TRAIN, VALIDATION, TEST = "training", "validation", "testing"


class RowSource(Protocol):
    """Rows with labels, in one or more blocks that are divided over the ranks each for itself.

    `classes` is how many there are, None where the labels of all ranks have to tell.
    """

    @property
    def classes(self) -> int | None:
        """The number of classes."""

    @property
    def blocks(self) -> tuple[int, ...]:
        """The rows of every block."""

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Return features and labels of the rows in `ranges`, one range for every block."""


class ArrayPair:
    """Features and labels that can be sliced: arrays, HDF5 data sets, NetCDF variables, members of an .npz."""

    def __init__(self, x: Any, y: Any, classes: int | None = None) -> None:
        self._x = x
        self._y = y
        self.classes = classes

    @property
    def blocks(self) -> tuple[int, ...]:
        """One block: all rows."""
        return (len(self._x),)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Slice both."""
        (rows,) = ranges
        return np.asarray(self._x[rows.start : rows.stop]), np.asarray(self._y[rows.start : rows.stop])


def own_ranges(parts: Sequence[range], peers: Peers) -> list[range]:
    """Return this rank's rows of every block, of which the rows `parts` are wanted; over all ranks an exact cover.

    The next block starts with the next rank, so that no rank gets the larger part of all of them.
    """
    ranges = []
    for block, part in enumerate(parts):
        own = split_evenly(len(part), peers.size, (peers.rank + block) % peers.size)
        ranges.append(range(part.start + own.start, part.start + own.stop))
    return ranges


def cut(blocks: Sequence[int], valid: float, test: float) -> dict[str, list[range]]:
    """Return the rows of every block that train, validate and test: the last ones are held out, the very last test."""
    found: dict[str, list[range]] = {TRAIN: [], VALIDATION: [], TEST: []}
    for rows in blocks:
        tested = round(rows * test)
        validated = round(rows * valid)
        edge = rows - tested - validated
        found[TRAIN].append(range(0, edge))
        found[VALIDATION].append(range(edge, edge + validated))
        found[TEST].append(range(edge + validated, rows))
    return found


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
