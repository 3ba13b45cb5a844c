"""Give every rank its rows: read by itself, or sent by rank 0; images from their files, batch by batch."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness import datasets
from harness.base.errors import UserError
from harness.comm.world import World
from harness.datasets.shards import Shards, split_evenly
from harness.schema.data_record import DataRecord
from harness.schema.sweep import Point

Array = npt.NDArray[Any]

_MESSAGE_BYTES = 64 * 2**20
_LEAST_TEST_ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class RankData:
    """One rank's rows. Images stay uint8 [rows, *features]; other features are float32, already standardised.

    `shift` and `factor` turn uint8 rows x into the network's input (x - shift) * factor; None where done.
    Labels are int32 [rows]. `load_s` and `distribute_s` are seconds; where rank 0 sends the rows, reading them is
    part of the latter. Where images stay in files, `files` are the paths and `train_x` and `test_x` the places of
    the images in them (`Prepared`).
    """

    record: DataRecord
    shards: Shards
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    shift: Array | None
    factor: Array | None
    load_s: float
    distribute_s: float
    files: npt.NDArray[np.bytes_] | None = None


def load(world: World, point: Point, data_dir: Path | None, shares: tuple[int, ...] | None = None) -> RankData:
    """Prepare the data once and return this rank's part of it; `shares` are the ranks' where it is not all of them.

    Raises:
        SharedError: the data is absent or damaged, or has fewer rows than asked for.
    """
    begin = time.perf_counter()
    scatter = point.workload.distribution == "scatter" and world.size > 1
    source, head = world.on_root(lambda: _prepare_once(point, data_dir))
    prepared = head if scatter and world.rank else datasets.prepare(source)
    shards = _shards(point, prepared.record.train_rows, shares)
    record, samples = prepared.record, point.workload.samples
    if (
        prepared.files is not None and samples is not None
    ):  # where images are decoded, few are tested on as on few trained
        record = replace(record, test_rows=min(record.test_rows, max(_LEAST_TEST_ROWS, samples // 5)))
    train = [shards.own_rows(rank) for rank in range(world.size)]
    test = [split_evenly(record.test_rows, world.size, rank) for rank in range(world.size)]
    opened = time.perf_counter()
    train_x, train_y, test_x, test_y = (
        _hand_out(world, array, rows) if scatter else _read(array, rows[world.rank])
        for arrays, rows in (((prepared.train_x, prepared.train_y), train), ((prepared.test_x, prepared.test_y), test))
        for array in arrays
    )
    distribute_s = time.perf_counter() - opened if scatter else 0.0
    images = train_x.dtype == np.uint8 or prepared.files is not None
    for part in () if images else (train_x, test_x):
        part -= prepared.shift
        part *= prepared.factor
    return RankData(
        record=record,
        shards=shards,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        shift=prepared.shift if images else None,
        factor=prepared.factor if images else None,
        load_s=time.perf_counter() - begin - distribute_s,
        distribute_s=distribute_s,
        files=prepared.files,
    )


def _prepare_once(point: Point, data_dir: Path | None) -> tuple[datasets.DataSource, datasets.Prepared]:
    """Return the source, and what is prepared of it with no rows: only their shapes and types are left."""
    source = datasets.locate(point.workload, data_dir, point.data_id)
    prepared = datasets.prepare(source)
    _shards(point, prepared.record.train_rows)
    train_x, train_y, test_x, test_y = (
        np.empty((0, *array.shape[1:]), array.dtype)
        for array in (prepared.train_x, prepared.train_y, prepared.test_x, prepared.test_y)
    )
    head = replace(prepared, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, files=None)
    return source, head


def _shards(point: Point, available: int, shares: tuple[int, ...] | None = None) -> Shards:
    workload, layout = point.workload, point.layout
    rows = workload.samples or available
    if rows > available:
        raise UserError(f"SAMPLES={rows} is more than the {available} training rows of {workload.dataset}")
    shards = Shards(
        rows=rows, batch=workload.batch(layout.ranks), shares=shares or layout.shares or (1,) * layout.ranks
    )
    if workload.drop_remainder and not shards.full_steps:
        raise UserError(
            f"SAMPLES={rows} does not fill one global batch of {shards.batch} and partial batches are dropped: "
            "use more samples, a smaller batch or --no-drop-remainder"
        )
    return shards


def _read(array: Array, rows: range) -> Array:
    return np.array(array[rows.start : rows.stop])  # a copy: pages of the memory map are touched here, not in training


def _hand_out(world: World, array: Array, parts: Sequence[range]) -> Array:
    """Return this rank's part of `array`, whose rows only rank 0 has: it sends them point to point.

    So the paper does it (paper A, section 3.3.1). On the other ranks `array` has no rows, only their shape and type.
    """
    own = parts[world.rank]
    if world.rank:
        received = np.empty((len(own), *array.shape[1:]), dtype=array.dtype)
        for block in _blocks(array, own):
            world.comm.Recv(received[block.start - own.start : block.stop - own.start], source=0)
        return received
    for rank, rows in enumerate(parts[1:], start=1):
        for block in _blocks(array, rows):
            world.comm.Send(np.ascontiguousarray(array[block.start : block.stop]), dest=rank)
    return _read(array, own)


def _blocks(source: Array, rows: range) -> list[range]:
    row_bytes = source.dtype.itemsize * math.prod(source.shape[1:])
    size = max(1, _MESSAGE_BYTES // max(1, row_bytes))
    return [range(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size)]


_READ_AHEAD = 2  # batches decoded while a step runs
_KEEP_OPEN = 512  # containers that stay open; single image files are opened for every read
# Szegedy et al. 2015 ("Going deeper with convolutions"), section 6: 8 to 100 % of the area, aspect 3:4 to 4:3.
_AREA, _ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
_CENTRE = 0.875  # the middle 224 of 256 pixels, without a random crop


class ImageFiles:
    """Reads images by their place in their container: file number, offset, bytes."""

    def __init__(self, files: npt.NDArray[np.bytes_]) -> None:
        self._files = files
        self._open: dict[int, int] = {}

    def read(self, place: npt.NDArray[np.int64]) -> bytes:
        """Return the bytes of the image at `place`, int64 [3]. Threads may read at the same time."""
        number, offset, size = map(int, place)
        if len(self._files) > _KEEP_OPEN:
            with self.path(number).open("rb") as file:
                return os.pread(file.fileno(), size, offset)
        if number not in self._open:
            descriptor = os.open(self.path(number), os.O_RDONLY)
            if self._open.setdefault(number, descriptor) != descriptor:  # another thread was faster
                os.close(descriptor)
        return os.pread(self._open[number], size, offset)

    def path(self, number: int) -> Path:
        """Return the path of container `number`."""
        return Path(bytes(self._files[number]).decode())


def image_dataset(
    files: ImageFiles,
    places: Array,
    labels: Array,
    rows: npt.NDArray[np.int64],
    *,
    batch: int,
    size: int,
    threads: int,
    salt: int | None,
) -> tf.data.Dataset:
    """Return batches (uint8 [batch, size, size, 3], int32 [batch]) of the images at `places` in the order given.

    `rows` are their numbers in the whole data set. With a `salt` every image is cropped and mirrored at random,
    a function of row and salt alone; without, its middle is taken. The last batch may be smaller.
    """

    @tf.autograph.experimental.do_not_convert
    def load(place: tf.Tensor, label: tf.Tensor, row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        content = tf.ensure_shape(tf.numpy_function(files.read, [place], tf.string, stateful=False), [])
        seed = None if salt is None else tf.stack([row, tf.constant(salt, tf.int64)])
        return decode(content, size, seed), label

    dataset = tf.data.Dataset.from_tensor_slices((places, labels, rows))
    dataset = dataset.map(load, num_parallel_calls=threads, deterministic=True).batch(batch)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    return dataset.prefetch(_READ_AHEAD).with_options(options)


def decode(content: tf.Tensor, size: int, seed: tf.Tensor | None) -> tf.Tensor:
    """Return an encoded image as uint8 [size, size, 3]: a random part of it, or its middle where `seed` is None.

    Grey and CMYK images become RGB. Only the part that is used is decoded, where it is a JPEG.
    """
    jpeg = tf.io.is_jpeg(content)
    shape = tf.cond(
        jpeg, lambda: tf.image.extract_jpeg_shape(content), lambda: tf.shape(tf.io.decode_png(content, channels=3))
    )
    window = _middle(shape) if seed is None else _random_part(shape, seed)
    top, left, height, width = tf.unstack(window)
    part = tf.cond(
        jpeg,
        lambda: tf.image.decode_and_crop_jpeg(content, window, channels=3),
        lambda: tf.slice(tf.io.decode_png(content, channels=3), [top, left, 0], [height, width, 3]),
    )
    image = tf.image.resize(part, [size, size])
    if seed is not None:
        image = tf.image.stateless_random_flip_left_right(image, seed)
    return tf.ensure_shape(tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8), [size, size, 3])


def _middle(shape: tf.Tensor) -> tf.Tensor:
    """Return the central square (top, left, height, width)."""
    side = tf.cast(_CENTRE * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
    side = tf.maximum(side, 1)
    return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])


def _random_part(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros([1, 0, 4]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=_ASPECT,
        area_range=_AREA,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.stack([begin[0], begin[1], extent[0], extent[1]])
