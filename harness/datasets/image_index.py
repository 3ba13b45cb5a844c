"""The index of images that stay in their files: its rows, classes and damaged images, made once and kept."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.base.files import cache_folder, publish_once, write_atomic
from harness.datasets.image_files import _log, checked_images
from harness.schema.record import decode, encode

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
