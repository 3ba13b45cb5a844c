"""Images from their files, batch by batch: read, decoded, cropped and mirrored."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.train.shard_data import Array

_READ_AHEAD = 2  # batches decoded while a step runs


_KEEP_OPEN = 512  # containers that stay open; single image files are opened for every read


# Szegedy et al. 2015 ("Going deeper with convolutions"), section 6: 8 to 100 % of the area, aspect 3:4 to 4:3.
_AREA = (0.08, 1.0)


_ASPECT = (3 / 4, 4 / 3)


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
        return decode_image(content, size, seed), label

    dataset = tf.data.Dataset.from_tensor_slices((places, labels, rows))
    dataset = dataset.map(load, num_parallel_calls=threads, deterministic=True).batch(batch)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    return dataset.prefetch(_READ_AHEAD).with_options(options)


def decode_image(content: tf.Tensor, size: int, seed: tf.Tensor | None) -> tf.Tensor:
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
