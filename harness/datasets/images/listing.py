"""List the images of a folder tree, of tar files and of TFRecord files, without unpacking anything.

Whatever holds it, an image is a run of bytes in a file, with the same name and class everywhere.
"""

import itertools
import os
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from harness.errors import UserError

SUFFIXES = (".jpeg", ".jpg", ".png")
_LENGTH, _CHECKSUM = struct.calcsize("<Q"), 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """One stored image: `bytes` bytes of `path` from `offset`. `kind` is its class, a WordNet id or a number."""

    kind: str
    name: str
    path: Path
    offset: int
    bytes: int


def list_images(paths: tuple[Path, ...]) -> Iterator[Image]:
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


def _folder(root: Path) -> Iterator[Image]:
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.lower().endswith(SUFFIXES):
                    size = entry.stat().st_size
                    yield Image(kind=folder.name, name=entry.name, path=Path(entry.path), offset=0, bytes=size)
    for inner in sorted(root.glob("n*.tar")):
        yield from _tar(inner)


def _tar(path: Path) -> Iterator[Image]:
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
                    kind = name.parent.name or path.stem
                    yield from _member(path, kind, member, 0)
    except (tarfile.TarError, OSError) as error:
        raise UserError(f"'{path}' cannot be read as a tar file ({error}): fetch it again") from error


def _member(path: Path, kind: str, member: tarfile.TarInfo, start: int) -> Iterator[Image]:
    name = Path(member.name).name
    if member.isfile() and name.lower().endswith(SUFFIXES):
        yield Image(kind=kind, name=name, path=path, offset=start + member.offset_data, bytes=member.size)


def _records(path: Path) -> Iterator[Image]:
    """Yield the images of a TFRecord file of tf.train.Example with image/encoded and image/class/*."""
    import tensorflow as tf  # its parser of Example: no other reader needs it
    from google.protobuf.message import DecodeError

    with path.open("rb") as file:
        for number in itertools.count():
            start = file.tell() + _LENGTH + _CHECKSUM
            payload = _payload(file, path)
            if payload is None:
                return
            try:
                features = tf.train.Example.FromString(payload).features.feature
            except DecodeError as error:
                raise UserError(f"'{path}' record {number} is no tf.train.Example: write the file again") from error
            encoded = features["image/encoded"].bytes_list.value
            if not encoded:
                raise UserError(f"'{path}' record {number} has no image/encoded: it is not an image record")
            name = features["image/filename"].bytes_list.value
            yield Image(
                kind=_kind(features, path, number),
                name=name[0].decode() if name else f"{path.name}-{number:06d}",
                path=path,
                offset=start + payload.index(encoded[0]),
                bytes=len(encoded[0]),
            )


def _payload(file: BinaryIO, path: Path) -> bytes | None:
    """Return the next record of a TFRecord file, None at its end."""
    head = file.read(_LENGTH + _CHECKSUM)
    if not head:
        return None
    length = struct.unpack("<Q", head[:_LENGTH])[0] if len(head) == _LENGTH + _CHECKSUM else -1
    rest = os.fstat(file.fileno()).st_size - file.tell() - _CHECKSUM
    if not 0 <= length <= rest:
        raise UserError(f"'{path}' is cut, or not an uncompressed TFRecord file: write it again")
    payload = file.read(length)
    file.read(_CHECKSUM)
    return payload


def _kind(features: "object", path: Path, number: int) -> str:
    synset = features["image/class/synset"].bytes_list.value  # type: ignore[index]
    if synset:
        return str(synset[0].decode())
    label = features["image/class/label"].int64_list.value  # type: ignore[index]
    if not label:
        raise UserError(f"'{path}' record {number} has neither image/class/synset nor image/class/label")
    return f"{label[0]:06d}"
