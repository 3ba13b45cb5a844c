"""Images decoded per second by the harness's input pipeline, beside a bare `tf.data` pipeline on the same files."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from harness import datasets
from harness.schema.presets import resolve

_IMAGES, _CLASSES, _BATCH, _SIZE, _SALT = 512, 10, 32, 224, 12345


def measure_decoding(*, threads: int, rounds: int) -> str:
    """Decode the same synthetic JPEGs `rounds` times with each pipeline, in turns, after one pass that is not timed.

    Return a sentence with the medians of both in images per second and core, and their ratio.
    """
    from harness.base.processes import quiet_stderr

    with quiet_stderr():
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        tf.config.set_visible_devices([], "GPU")
    workload = resolve(
        dataset="imagenet",
        model="resnet50",
        data="synthetic",
        input="files",
        samples=_IMAGES,
        classes=_CLASSES,
        image_size=_SIZE,
    )
    prepared = datasets.prepare(datasets.locate(workload, None))
    pipelines = (lambda: _ours(prepared, threads), lambda: _bare(prepared, threads))
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            rate = _pass(pipelines[which])
            if number:
                rates[which].append(rate)
    ours, bare = map(median, rates)
    return (
        f"{_IMAGES} JPEGs of about 100 kB to {_SIZE} x {_SIZE} pixels, {threads} threads, {rounds} passes each: "
        f"harness {ours / threads:.1f} images/s per core, bare tf.data {bare / threads:.1f}, ratio {ours / bare:.3f}"
    )


def _pass(pipeline: Callable[[], Any]) -> float:
    dataset = pipeline()
    begin = time.perf_counter()
    images = sum(int(labels.shape[0]) for _, labels in dataset)
    assert images == _IMAGES
    return images / (time.perf_counter() - begin)


def _ours(prepared: datasets.Prepared, threads: int) -> Any:
    import numpy as np

    from harness.train.image_stream import ImageFiles, image_dataset

    assert prepared.files is not None
    return image_dataset(
        ImageFiles(prepared.files),
        np.array(prepared.train_x),
        np.array(prepared.train_y),
        np.arange(_IMAGES, dtype=np.int64),
        batch=_BATCH,
        size=_SIZE,
        threads=threads,
        salt=_SALT,
    )


def _bare(prepared: datasets.Prepared, threads: int) -> Any:
    """Return the pipeline that TensorFlow's own guides write: read, crop while decoding, resize, flip, batch."""
    import tensorflow as tf

    assert prepared.files is not None
    paths = [bytes(prepared.files[number]).decode() for number in prepared.train_x[:, 0]]

    def load(path: Any, label: Any) -> Any:
        content = tf.io.read_file(path)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(content),
            tf.zeros([1, 0, 4]),
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
        image = tf.image.resize(tf.image.decode_and_crop_jpeg(content, window, channels=3), [_SIZE, _SIZE])
        return tf.cast(tf.image.random_flip_left_right(image), tf.uint8), label

    pairs = tf.data.Dataset.from_tensor_slices((paths, prepared.train_y))
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return pairs.map(load, num_parallel_calls=threads).batch(_BATCH).prefetch(2).with_options(options)
