"""Images in class folders and TFRecord files: where each lies, which can be decoded, and the index of them."""

import hashlib
import io
import itertools
import logging
import os
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.base.files import cache_folder, publish_once, write_atomic
from harness.datasets.dataset import FoundFiles
from harness.schema.record import decode, encode

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


# The index of images that stay in their files: its rows, classes and damaged images, made once and kept.

_FORMAT = "1"  # part of every index's path: a new layout never reads an old one


_SUMMARY = "index.json"


_PLACES = "places.npy"


_LABELS = "labels.npy"


_FILES = "files.npy"


_FAULTS = "damaged.txt"


_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSummary:
    """What an index holds: rows of both parts, classes, the SHA-256 of all names and contents, and one note."""

    train_rows: int
    test_rows: int
    classes: int
    sha256: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageIndex:
    """An index on disk, opened. Training rows come first.

    `places` int64 [rows, 3]: file number, offset and bytes; `labels` int32 [rows]; `files` bytes [files], paths.
    """

    summary: IndexSummary
    folder: Path
    places: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32]
    files: npt.NDArray[np.bytes_]


def open_index(train: tuple[Path, ...], test: tuple[Path, ...]) -> ImageIndex:
    """Return the index of these containers, made in the cache folder the first time: every image is decoded once.

    Raises:
        UserError: a container is damaged, or holds fewer than two classes or images.
    """
    folder = cache_folder() / "images" / _FORMAT / _state((*train, *test))
    publish_once(folder, lambda staging: _write(train, test, staging))
    path = folder / _SUMMARY
    return ImageIndex(
        summary=decode(path.read_bytes(), IndexSummary, path),
        folder=folder,
        places=np.load(folder / _PLACES, mmap_mode="r"),
        labels=np.load(folder / _LABELS, mmap_mode="r"),
        files=np.load(folder / _FILES, mmap_mode="r"),
    )


def _state(paths: Iterable[Path]) -> str:
    """Return a name that changes when a container, or a class folder in it, does."""
    digest = hashlib.sha256()
    for path in paths:
        inner = sorted(path.iterdir()) if path.is_dir() else []
        for entry in (path, *inner):
            state = entry.stat()
            digest.update(f"{entry.resolve()}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _write(train: tuple[Path, ...], test: tuple[Path, ...], folder: Path) -> None:
    _log.warning("indexing the images of '%s': each is read and decoded once", train[0])
    stored = {"train": checked_images(train), "test": checked_images(test)}
    train_images = [image for image in stored["train"] if not image.fault]
    test_images = [image for image in stored["test"] if not image.fault]
    rows = [*train_images, *test_images]
    kinds = sorted({image.kind for image in rows})
    if len(kinds) < 2 or len(train_images) < 2:
        raise UserError(
            f"'{train[0]}' has {len(train_images)} readable images of {len(kinds)} classes: check the folder"
        )
    labels = {kind: label for label, kind in enumerate(kinds)}
    paths = dict.fromkeys(image.path for image in rows)
    files = {path: number for number, path in enumerate(paths)}
    places = [(files[image.path], image.offset, image.bytes) for image in rows]
    np.save(folder / _PLACES, np.array(places, np.int64))
    np.save(folder / _LABELS, np.array([labels[image.kind] for image in rows], np.int32))
    np.save(folder / _FILES, np.array([str(path.resolve()).encode() for path in files]))
    identity = hashlib.sha256()
    for number, images in enumerate((train_images, test_images)):
        for image in images:
            line = f"{number}\t{image.kind}/{image.name}\t{image.bytes}\t{image.crc:08x}\n"
            identity.update(line.encode())
    damaged = [image for image in (*stored["train"], *stored["test"]) if image.fault]
    lines = [f"{image.kind}/{image.name}\t{image.path}\t{image.fault}\n" for image in damaged]
    write_atomic(folder / _FAULTS, "".join(lines))
    parts = []
    if damaged:
        names = [f"{checked.kind}/{checked.name}" for checked in damaged[:_SHOWN]]
        more = ", ..." if len(damaged) > _SHOWN else ""
        parts.append(f"{len(damaged)} damaged images are left out ({', '.join(names)}{more})")
    unusual = Counter(checked.unusual for checked in rows if checked.unusual)
    if unusual:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(unusual.items()))
        parts.append(f"read as colour: {counts}")
    summary = IndexSummary(
        train_rows=len(train_images),
        test_rows=len(test_images),
        classes=len(kinds),
        sha256=identity.hexdigest(),
        note="; ".join(parts),
    )
    write_atomic(folder / _SUMMARY, encode(summary))
