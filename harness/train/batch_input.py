"""The rows of one step as the network takes them: picked by number, mirrored where chance says so, standardised."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.comm.native_library import find_library
from harness.train.shard_data import Array, RankData
from harness.train.step import Floats

_MASK = 0xFFFFFFFF


# Odd constants of xxHash32 (Collet): their products spread close numbers over all 32 bits.
_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)


def flip_salt(seed: int, epoch: int) -> int:
    """Return the 32-bit number that tells the mirrored rows of one epoch from those of another."""
    return (seed * _PRIMES[1] + (epoch + 1) * _PRIMES[2]) & _MASK


def flip(images: tf.Tensor, rows: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
    """Return `images` [rows, height, width, channels] with about every second one mirrored left to right.

    Which ones is a function of the row's number in the whole data set (`rows`, int32 [rows]) and of `salt`
    (uint32, `flip_salt`) alone.
    """
    mixed = tf.cast(rows, tf.uint32) * tf.constant(_PRIMES[0], tf.uint32) + salt
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, tf.constant(15, tf.uint32)))
    mixed *= tf.constant(_PRIMES[1], tf.uint32)
    mirrored = tf.bitwise.right_shift(mixed, tf.constant(31, tf.uint32)) == 1
    return tf.where(mirrored[:, tf.newaxis, tf.newaxis, tf.newaxis], tf.reverse(images, axis=[2]), images)


def prepare_input(rows: tf.Tensor, shift: Floats | None, factor: Floats | None) -> tf.Tensor:
    """Return the network's input float32: `rows` as they are, or (rows - shift) * factor for uint8 images."""
    if shift is None or factor is None:
        return rows
    if shift.size == 1 and not tf.config.list_logical_devices("GPU"):  # there the rows would travel twice a step
        # One pass over the batch instead of three, which a small network feels.
        low, high = (float((value - shift.item()) * factor.item()) for value in (0, 255))
        return tf.quantization.dequantize(tf.bitcast(rows, tf.quint8), low, high, mode="MIN_COMBINED")
    features = rows.shape[1:]
    flat = tf.reshape(tf.cast(rows, tf.float32), [-1, features.num_elements()])  # short rows broadcast slowly
    return tf.reshape((flat - _as_row(shift, features)) * _as_row(factor, features), tf.shape(rows))


def _as_row(values: Floats, features: tf.TensorShape) -> Floats:
    """Return `values`, which broadcast against a row of shape `features`, as float32 [values of a row]."""
    return np.ascontiguousarray(np.broadcast_to(values, tuple(features)), np.float32).ravel()


Batch = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""Takes an order (int32 [steps, rows]), a step's number (int32) and a `flip_salt` (uint32), and returns the network's
input (float32 [rows, *features]) and the labels (int32 [rows]) of that step, for a graph."""


def resident_batch(data: RankData, *, first: int, mirror: bool) -> Batch:
    """Return what makes batches of the rank's rows, kept on the device; row 0 is row `first` of the whole data set.

    The native operation and TensorFlow's own, which are taken on a GPU and where there is no compiler, agree to
    rounding.
    """
    rows = tf.constant(data.train_x)
    library = None if tf.config.list_logical_devices("GPU") else find_library().library
    if library is None or data.train_x.dtype not in (np.uint8, np.float32):
        labels = tf.constant(data.train_y, tf.int64)  # int32 is kept in host memory and would travel in every step

        def plain(order: tf.Tensor, step: tf.Tensor, salt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            numbers = order[step]
            values = tf.gather(rows, numbers)
            if mirror:
                values = flip(values, numbers + first, salt)
            return prepare_input(values, data.shift, data.factor), tf.cast(tf.gather(labels, numbers), tf.int32)

        return plain

    labels = tf.constant(data.train_y)
    none = np.zeros(0, np.float32)
    shift, factor = (none if part is None else _as_row(part, rows.shape[1:]) for part in (data.shift, data.factor))

    def batch(order: tf.Tensor, step: tf.Tensor, salt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs, targets = library.operations.harness_batch(
            rows, labels, order, step, shift, factor, salt, mirror=mirror, first=first
        )
        return inputs, targets

    return batch


# Images from their files, batch by batch: read, decoded, cropped and mirrored.

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
