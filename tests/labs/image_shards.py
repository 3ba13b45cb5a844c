"""Images written again as TFRecord files, as the distribution's own tools write them."""

from pathlib import Path

from harness.datasets.image_files import StoredImage, checked_images, content


def write_shards(train: tuple[Path, ...], test: tuple[Path, ...], output: Path, shards: int) -> list[int]:
    """Write the images that can be decoded to ``output/train-00000-of-...`` and ``validation-...``; return how many."""
    output.mkdir()
    counts = []
    for name, paths, number in (("train", train, shards), ("validation", test, max(1, shards // 8))):
        images = [image for image in checked_images(paths) if not image.fault]
        counts.append(len(images))
        for shard in range(number):
            part = images[shard * len(images) // number : (shard + 1) * len(images) // number]
            _write_records(output / f"{name}-{shard:05d}-of-{number:05d}", part)
    return counts


def _write_records(path: Path, images: list[StoredImage]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for image in images:
            values = {
                "image/encoded": content(image),
                "image/filename": image.name.encode(),
                "image/class/synset": image.kind.encode(),
            }
            features = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for name, value in values.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
