"""Images in folders, tar files and TFRecord files: where each lies, which can be decoded, and shards written."""

import hashlib
import io
import itertools
import os
import struct
import tarfile
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.base.files import folder_atomic
from harness.datasets.dataset import FoundFiles

_SUFFIXES = (".jpeg", ".jpg", ".png")
_TRAIN_TAR = "ILSVRC2012_img_train.tar"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImage:
    """One stored image: `bytes` bytes of `path` from `offset`. `kind` is its class, a WordNet id or a number."""

    kind: str
    name: str
    path: Path
    offset: int
    bytes: int


def _content(image: StoredImage) -> bytes:
    with image.path.open("rb") as file:
        return os.pread(file.fileno(), image.bytes, image.offset)


def find_images(folder: Path) -> FoundFiles:
    """Return the first of these in `folder`/imagenet or `folder`: TFRecord shards, class folders, the tar file.

    Class folders are ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``, or ``train/<wnid>.tar``; shards
    ``train-00000-of-01024`` and ``validation-...``. The distribution's flat validation images have no classes in
    their names, so without ``val/<wnid>/`` training images are held out.
    """
    for base in (folder / "imagenet", folder):
        shards = _shards(base, "train")
        if shards:
            return FoundFiles(train=shards, test=_shards(base, "validation"))
        train, tar = base / "train", base / _TRAIN_TAR
        whole = train.is_dir() and (_has_folders(train) or any(train.glob("n*.tar")))
        if whole or tar.is_file():
            val = [base / name for name in ("val", "validation") if _has_folders(base / name)]
            return FoundFiles(train=(train if whole else tar,), test=tuple(val[:1]))
    return FoundFiles(missing=("train/",))


def _shards(base: Path, part: str) -> tuple[Path, ...]:
    pattern = f"{part}-?????-of-?????*"
    found = ([path for path in place.glob(pattern) if path.is_file()] for place in (base, base / part))
    return tuple(sorted(next(filter(None, found), [])))


def _has_folders(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_dir() for path in folder.iterdir())


def list_images(paths: tuple[Path, ...]) -> Iterator[StoredImage]:
    """Yield the images in `paths`, each a folder of class folders, a tar file, or a TFRecord file.

    Raises:
        UserError: a file is cut, damaged or of another kind.
    """
    for path in paths:
        if path.is_dir():
            yield from _folder(path)
        elif path.suffix == ".tar":
            yield from _tar(path)
        else:
            yield from _records(path)


def _folder(root: Path) -> Iterator[StoredImage]:
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.lower().endswith(_SUFFIXES):
                    size = entry.stat().st_size
                    yield StoredImage(kind=folder.name, name=entry.name, path=Path(entry.path), offset=0, bytes=size)
    for inner in sorted(root.glob("n*.tar")):
        yield from _tar(inner)


def _tar(path: Path) -> Iterator[StoredImage]:
    """Yield the images of a tar file: of one class, named like the file, or of a tar file for each class."""
    try:
        with tarfile.open(path, "r:") as outer:
            for member in outer:
                name = Path(member.name)
                if name.suffix == ".tar":
                    with tarfile.open(fileobj=outer.extractfile(member), mode="r:") as inner:
                        for image in inner:
                            yield from _member(path, name.stem, image, member.offset_data)
                else:
                    yield from _member(path, name.parent.name or path.stem, member, 0)
    except (tarfile.TarError, OSError) as error:
        raise UserError(f"'{path}' cannot be read as a tar file ({error}): fetch it again") from error


def _member(path: Path, kind: str, member: tarfile.TarInfo, start: int) -> Iterator[StoredImage]:
    name = Path(member.name).name
    if member.isfile() and name.lower().endswith(_SUFFIXES):
        yield StoredImage(kind=kind, name=name, path=path, offset=start + member.offset_data, bytes=member.size)


def _records(path: Path) -> Iterator[StoredImage]:
    """Yield the images of a TFRecord file of tf.train.Example with image/encoded and image/class/*."""
    import tensorflow as tf  # its parser of Example: no other reader needs it
    from google.protobuf.message import DecodeError

    for number, (start, payload) in enumerate(_payloads(path)):
        try:
            features = tf.train.Example.FromString(payload).features.feature
        except DecodeError as error:
            raise UserError(f"'{path}' record {number} is not a tf.train.Example: write the file again") from error
        encoded = features["image/encoded"].bytes_list.value
        if not encoded:
            raise UserError(f"'{path}' record {number} has no image/encoded: it is not an image record")
        synset, label = features["image/class/synset"].bytes_list.value, features["image/class/label"].int64_list.value
        if not synset and not label:
            raise UserError(f"'{path}' record {number} has neither image/class/synset nor image/class/label")
        name = features["image/filename"].bytes_list.value
        yield StoredImage(
            kind=synset[0].decode() if synset else f"{label[0]:06d}",
            name=name[0].decode() if name else f"{path.name}-{number:06d}",
            path=path,
            offset=start + payload.index(encoded[0]),
            bytes=len(encoded[0]),
        )


def _payloads(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of every record of a TFRecord file, whose length and content each have a checksum."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while head := file.read(12):
            start = file.tell()
            length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else -1
            if not 0 <= length <= size - start - 4:
                raise UserError(f"'{path}' is cut, or not an uncompressed TFRecord file: write it again")
            yield start, file.read(length)
            file.seek(4, os.SEEK_CUR)


_AT_ONCE = 1024  # images handed to the threads at a time: more would only wait in memory
_FORMATS = ("JPEG", "PNG")
_UNUSUAL = {"L": "grey", "CMYK": "CMYK"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedImage:
    """An image with the CRC-32 of its bytes. `fault` says why it cannot be decoded, `unusual` what it is if not RGB."""

    image: StoredImage
    crc: int
    fault: str = ""
    unusual: str = ""


def checked_images(paths: tuple[Path, ...]) -> list[CheckedImage]:
    """Return the images in `paths`, each decoded once on a thread per core, sorted by a hash of their names.

    The order is the same for every container, and mixes the classes: so a rank's contiguous rows hold all of them,
    as the shuffled shards of ImageNet do.

    Raises:
        UserError: a container is damaged.
    """
    waiting, checked = list_images(paths), list[CheckedImage]()
    with ThreadPoolExecutor(usable_cores()) as threads:
        while block := list(itertools.islice(waiting, _AT_ONCE)):
            checked += threads.map(_check, block)
    return sorted(checked, key=_name_hash)


def _name_hash(checked: CheckedImage) -> tuple[bytes, str]:
    name = checked.image.name
    return hashlib.blake2b(name.encode(), digest_size=8).digest(), name


def _check(image: StoredImage) -> CheckedImage:
    from PIL import Image

    content = _content(image)
    fault, unusual = "", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content)) as picture:
                if picture.format in _FORMATS:
                    picture.load()
                    unusual = "PNG" if picture.format == "PNG" else _UNUSUAL.get(picture.mode, "")
                else:
                    fault = f"it is {picture.format}"
    # Pillow's decoders raise these for bad content, whatever its kind.
    except (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombWarning) as error:
        fault = "it cannot be decoded" if "<_io" in str(error) else str(error)
    return CheckedImage(image=image, crc=zlib.crc32(content), fault=fault, unusual=unusual)


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
        for name, paths, number in (("train", train, shards), ("validation", test, max(1, shards // 8))):
            images = [checked.image for checked in checked_images(paths) if not checked.fault]
            counts.append(len(images))
            for shard in range(number if images else 0):
                part = images[shard * len(images) // number : (shard + 1) * len(images) // number]
                _write_records(staging / f"{name}-{shard:05d}-of-{number:05d}", part)
    return counts


def _write_records(path: Path, images: list[StoredImage]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for image in images:
            values = {
                "image/encoded": _content(image),
                "image/filename": image.name.encode(),
                "image/class/synset": image.kind.encode(),
            }
            features = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for name, value in values.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
