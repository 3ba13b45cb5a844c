"""Images from files to batches, and an epoch as one compiled graph whose batches are decoded while it runs."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.train.shard_data import Array, RankData
from harness.train.step import TrainState, prepare_input, run_steps, train_step

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


_MEASURED_STEPS = 3


class StreamedEpoch:
    """Trains one epoch on the rank's images; called like the epoch on resident rows (`step.compile_epoch`).

    It returns float32 [steps, 2]: the rank's summed row losses, and the seconds each step waited for its batch.
    """

    def __init__(self, state: TrainState, data: RankData, *, rank: int, threads: int, drop_remainder: bool) -> None:
        assert data.files is not None
        self._data, self._threads, self._random = data, threads, state.mirror
        self._files = ImageFiles(data.files)
        self._first = data.shards.own_rows(rank).start
        self._batch = len(data.shards.lanes(rank))
        partial_rows = 0 if drop_remainder else data.shards.remainder
        self._partial = len(data.shards.partial(rank)) if partial_rows else 0
        self._loop = _compile(state, data, rank=rank, partial_rows=partial_rows)
        self._part = _compile(state, data, rank=rank, partial_rows=0) if partial_rows else self._loop

    def __call__(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
        """Train on the rows in the given order (`Shards.order`), each cropped and mirrored by `salt`."""
        batches = iter(self._batches(order, partial if last else partial[:0], salt))
        return (self._loop if last else self._part)(batches, tf.shape(order)[0])

    def without_input(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> float:
        """Return the seconds of a step that gets the same decoded batch again and again: input costs nothing.

        The steps do train: the caller restores the variables.
        """
        steps = min(_MEASURED_STEPS, len(order))
        decoded = list(self._batches(order[:1], partial, salt))
        given = [*decoded[:1] * steps, *decoded[1:]] if steps else decoded
        batches = tf.data.Dataset.from_generator(lambda: iter(given), output_signature=_specs(self._data))
        begin = time.perf_counter()
        self._loop(iter(batches), tf.constant(steps)).numpy()
        return (time.perf_counter() - begin) / max(1, len(given))

    def _batches(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> tf.data.Dataset:
        last = partial.numpy()[: self._partial]
        visits = np.concatenate([order.numpy().ravel(), last]).astype(np.int64)
        return image_dataset(
            self._files,
            self._data.train_x[visits],
            self._data.train_y[visits],
            visits + self._first,
            batch=self._batch,
            size=self._data.record.features[0],
            threads=self._threads,
            salt=int(salt) if self._random else None,
        )


def _specs(data: RankData) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    return tf.TensorSpec([None, *data.record.features], tf.uint8), tf.TensorSpec([None], tf.int32)


def _compile(state: TrainState, data: RankData, *, rank: int, partial_rows: int) -> Any:
    """Return the compiled loop over an iterator of batches; `partial_rows` are those of all ranks' last batch."""

    @tf.function(input_signature=[tf.data.IteratorSpec(_specs(data)), tf.TensorSpec([], tf.int32)], autograph=False)
    def loop(batches: tf.data.Iterator, steps: tf.Tensor) -> tf.Tensor:
        def step(local: range, global_rows: int) -> tf.Tensor:
            begin = tf.timestamp()
            with tf.control_dependencies([begin]):
                none = tf.zeros([0, *data.record.features], tf.uint8), tf.zeros([0], tf.int32)
                images, labels = batches.get_next() if local else none
            with tf.control_dependencies([images]):
                waited = tf.timestamp() - begin
            images = tf.ensure_shape(images, [len(local), *data.record.features])
            inputs = prepare_input(images, data.shift, data.factor)
            loss = train_step(state, inputs, tf.ensure_shape(labels, [len(local)]), local, global_rows)
            return tf.stack([loss, tf.cast(waited, tf.float32)])

        def whole_step(index: tf.Tensor) -> tf.Tensor:
            return step(data.shards.lanes(rank), data.shards.batch)

        def partial_step() -> tf.Tensor:
            return step(data.shards.partial(rank), partial_rows)

        return run_steps(state, steps, whole_step, partial_step if partial_rows else None)

    return loop
