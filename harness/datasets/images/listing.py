"""List the images of a folder tree, of tar files and of TFRecord files, and decode each once to find the damaged."""

import io
import itertools
import os
import struct
import tarfile
import warnings
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from harness.base.errors import UserError

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


_AT_ONCE = 1024  # images handed to the threads at a time: more would only wait in memory
_FORMATS = ("JPEG", "PNG")
_UNUSUAL = {"L": "grey", "CMYK": "CMYK"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """An image with the CRC-32 of its bytes. `fault` says why it cannot be decoded, `unusual` what it is if not RGB."""

    image: Image
    crc: int
    fault: str = ""
    unusual: str = ""


def check_images(images: Iterable[Image]) -> Iterator[Checked]:
    """Yield every image checked, in the order given; a thread per core decodes."""
    from harness.base.cores import usable_cores

    waiting = iter(images)
    with ThreadPoolExecutor(usable_cores()) as threads:
        while block := list(islice(waiting, _AT_ONCE)):
            yield from threads.map(_check, block)


def read_bytes(image: Image) -> bytes:
    """Return the stored bytes of `image`."""
    with image.path.open("rb") as file:
        return os.pread(file.fileno(), image.bytes, image.offset)


def _check(image: Image) -> Checked:
    from PIL import Image as Pillow

    content = read_bytes(image)
    crc, fault, unusual = zlib.crc32(content), "", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Pillow.DecompressionBombWarning)
            with Pillow.open(io.BytesIO(content)) as picture:
                if picture.format in _FORMATS:
                    picture.load()
                    unusual = "PNG" if picture.format == "PNG" else _UNUSUAL.get(picture.mode, "")
                else:
                    fault = f"it is {picture.format}"
    # Pillow's decoders raise these for bad content, whatever its kind.
    except (OSError, SyntaxError, ValueError, IndexError, Pillow.DecompressionBombWarning) as error:
        fault = "it cannot be decoded" if "<_io" in str(error) else str(error)
    return Checked(image=image, crc=crc, fault=fault, unusual=unusual)
