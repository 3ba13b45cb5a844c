"""Images in class folders and TFRecord files: where each lies, and which can be decoded."""

import hashlib
import io
import itertools
import logging
import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.datasets.dataset import FoundFiles

_log = logging.getLogger(__name__)
_SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImage:
    """One stored image: `bytes` bytes of `path` from `offset`. `kind` is its class, a WordNet id or a number.

    Once it is checked, `crc` is the CRC-32 of its bytes, `fault` says why it cannot be decoded, `unusual` what it is if
    not RGB.
    """

    kind: str
    name: str
    path: Path
    offset: int
    bytes: int
    crc: int = 0
    fault: str = ""
    unusual: str = ""


def content(image: StoredImage) -> bytes:
    """Return the stored bytes of an image."""
    with image.path.open("rb") as file:
        return os.pread(file.fileno(), image.bytes, image.offset)


def find_images(folder: Path) -> FoundFiles:
    """Return the first of these in `folder`/imagenet or `folder`: TFRecord shards, class folders.

    Class folders are ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``; shards ``train-00000-of-01024`` and
    ``validation-...``. The distribution's flat validation images have no classes in
    their names, so without ``val/<wnid>/`` training images are held out.
    """
    for base in (folder / "imagenet", folder):
        shards = _shards(base, "train")
        if shards:
            return FoundFiles(train=shards, test=_shards(base, "validation"))
        train = base / "train"
        if _has_folders(train):
            validation = [base / name for name in ("val", "validation") if _has_folders(base / name)]
            return FoundFiles(train=(train,), test=tuple(validation[:1]))
    return FoundFiles(missing=("train/",))


def _shards(base: Path, part: str) -> tuple[Path, ...]:
    pattern = f"{part}-?????-of-?????*"
    for folder in (base, base / part):
        shards = sorted(path for path in folder.glob(pattern) if path.is_file())
        if shards:
            return tuple(shards)
    return ()


def _has_folders(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_dir() for path in folder.iterdir())


def _folder(root: Path) -> Iterator[StoredImage]:
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.lower().endswith(_SUFFIXES):
                    size = entry.stat().st_size
                    yield StoredImage(kind=folder.name, name=entry.name, path=Path(entry.path), offset=0, bytes=size)


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
        synset = features["image/class/synset"].bytes_list.value
        label = features["image/class/label"].int64_list.value
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


def checked_images(paths: tuple[Path, ...]) -> list[StoredImage]:
    """Return the images in `paths`, each decoded once on a thread per core, sorted by a hash of their names.

    A path is a folder of class folders or a TFRecord file.

    The order is the same for every container, and mixes the classes: so a rank's contiguous rows hold all of them,
    as the shuffled shards of ImageNet do.

    Raises:
        UserError: a container is damaged.
    """
    waiting = itertools.chain.from_iterable(_folder(path) if path.is_dir() else _records(path) for path in paths)
    checked = list[StoredImage]()
    with ThreadPoolExecutor(usable_cores()) as threads:
        while batch := list(itertools.islice(waiting, _AT_ONCE)):
            checked += threads.map(_check, batch)
    return sorted(checked, key=_mixed_order)


def _mixed_order(image: StoredImage) -> tuple[bytes, str]:
    """Return a key that sorts images in an order that mixes the classes."""
    return hashlib.blake2b(image.name.encode(), digest_size=8).digest(), image.name


def _check(image: StoredImage) -> StoredImage:
    from PIL import Image, UnidentifiedImageError

    encoded = content(image)
    fault = ""
    unusual = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(encoded)) as picture:
                if picture.format in _FORMATS:
                    picture.load()
                    unusual = "PNG" if picture.format == "PNG" else _UNUSUAL.get(picture.mode, "")
                else:
                    fault = f"it is {picture.format}"
    except UnidentifiedImageError:
        fault = "it cannot be decoded"
    # Pillow's decoders raise these for bad content, whatever its kind.
    except (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombWarning) as error:
        fault = str(error)
    return replace(image, crc=zlib.crc32(encoded), fault=fault, unusual=unusual)
