"""Decode every image once: damaged ones are left out and named, unusual ones counted."""

import io
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from harness.datasets.images.listing import Image

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
    from harness.comm.cores import usable_cores

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
