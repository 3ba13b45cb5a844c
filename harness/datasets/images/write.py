"""Write images as TFRecord shards, in the order of their index: a rank's rows then lie side by side in few files."""

from collections.abc import Iterator
from pathlib import Path

from harness.datasets.images.check import Checked, read_bytes
from harness.datasets.images.index import checked_images
from harness.errors import UserError
from harness.files import folder_atomic

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
