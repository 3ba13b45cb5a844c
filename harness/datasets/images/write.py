"""Write images: synthetic JPEGs where ImageNet is absent, and TFRecord shards in the order of their index."""

import io
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from harness.base.errors import UserError
from harness.base.files import cache_folder, folder_atomic, locked, publish
from harness.datasets import synthetic
from harness.datasets.dataset import TEST, TRAIN, Dataset, sized
from harness.datasets.images.index import checked_images
from harness.datasets.images.listing import Checked, read_bytes

VERSION = 1
_SIDE, _QUALITY, _NOISE = 400, 90, 12


def jpeg_folder(entry: Dataset, rows: int, classes: int) -> Path:
    """Return a folder of `rows` synthetic training JPEGs and their test part, written the first time."""
    folder = cache_folder() / "images" / "synthetic" / f"v{VERSION}-{classes}-{rows}"
    if not folder.exists():
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.exists():
                with publish(folder) as staging:
                    _write_jpeg(sized(entry, _SIDE, classes), rows, staging)
    return folder


def _write_jpeg(entry: Dataset, rows: int, folder: Path) -> None:
    from PIL import Image

    assert entry.twin is not None
    test_rows = synthetic.test_rows(entry.info.test_rows, rows, entry.twin.least_test_rows)
    for part, name, count in ((TRAIN, "train", rows), (TEST, "val", test_rows)):
        noise = np.random.default_rng([VERSION, part == TRAIN])
        blocks = (zip(x, y, strict=True) for x, y in synthetic.blocks(entry, count, part))
        for number, (pixels, label) in enumerate(chain.from_iterable(blocks)):
            rough = pixels + noise.normal(0, _NOISE, pixels.shape)
            content = io.BytesIO()
            Image.fromarray(np.clip(rough, 0, 255).astype(np.uint8)).save(content, "JPEG", quality=_QUALITY)
            place = folder / name / f"n{label:08d}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}_{number:08d}.JPEG").write_bytes(content.getvalue())


_PARTS = ("train", "validation")


def write_shards(train: tuple[Path, ...], test: tuple[Path, ...], output: Path, shards: int) -> list[int]:
    """Write the images that can be decoded to ``output/train-00000-of-...`` and ``validation-...``.

    Returns:
        the images in both parts. `shards` is the number of training files; validation gets an eighth as many.

    Raises:
        UserError: `output` has content, cannot be written or the disk is full.
    """
    if output.exists() and any(output.iterdir()):
        raise UserError(f"folder '{output}' for shards is not empty: choose another")
    counts = []
    with folder_atomic(output) as staging:
        for name, paths, number in zip(_PARTS, (train, test), (shards, max(1, shards // 8)), strict=True):
            images = [checked for checked in checked_images(paths) if not checked.fault]
            counts.append(len(images))
            for shard in range(number if images else 0):
                part = images[shard * len(images) // number : (shard + 1) * len(images) // number]
                _write(staging / f"{name}-{shard:05d}-of-{number:05d}", part)
    return counts


def _write(path: Path, images: list[Checked]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in _records(images):
            writer.write(record)


def _records(images: list[Checked]) -> Iterator[bytes]:
    import tensorflow as tf

    for checked in images:
        image = checked.image
        values = {
            "image/encoded": read_bytes(image),
            "image/filename": image.name.encode(),
            "image/class/synset": image.kind.encode(),
        }
        features = {
            name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for name, value in values.items()
        }
        yield tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
