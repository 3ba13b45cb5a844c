"""MNIST: 28 x 28 grey images of handwritten digits, in LeCun's idx files."""

import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.datasets.dataset import Block, Dataset, DatasetInfo, Download, FoundFiles, Twin, first, last_tenth, packed
from harness.datasets.synthetic import render_grey

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes with `dims` dimensions, gzip-compressed or not.

    Raises:
        UserError: the file is no such idx file, or is shorter or longer than its header says.
    """
    content = _content(path)
    magic = _UNSIGNED_BYTE << 8 | dims
    header = 4 + 4 * dims
    if len(content) < header:
        raise UserError(f"'{path}' is cut: {len(content)} bytes are less than an idx header; fetch it again")
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise UserError(f"'{path}' starts with 0x{found:08x}, not the idx magic number 0x{magic:08x}: fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=dims, offset=4))
    expected = header + math.prod(shape)
    if len(content) != expected:
        state = "cut" if len(content) < expected else "too long"
        raise UserError(
            f"'{path}' is {state}: its header promises {expected:,} bytes, it has {len(content):,}; fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"'{path}' is a cut or damaged gzip file ({error}): fetch it again") from error


_CVDF = "https://storage.googleapis.com/cvdf-datasets/mnist"
_TRAIN_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)

INFO = DatasetInfo(
    name="mnist",
    title="MNIST",
    features=(28, 28, 1),
    classes=10,
    dtype="uint8",
    default_model="dnn",
    train_rows=60_000,
    test_rows=10_000,
    source="LeCun, Cortes, Burges: the MNIST database of handwritten digits",
    standardise="channel",
    value_range=(0, 255),
    shares=tuple(count / 60_000 for count in _TRAIN_COUNTS),
    train_counts=_TRAIN_COUNTS,
    test_counts=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    channel_mean=(0.1307,),
    channel_std=(0.3081,),
    twin_rows=60_000,
    downloads=(
        Download(
            url=f"{_CVDF}/train-images-idx3-ubyte.gz",
            bytes=9912422,
            sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        Download(
            url=f"{_CVDF}/train-labels-idx1-ubyte.gz",
            bytes=28881,
            sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        Download(
            url=f"{_CVDF}/t10k-images-idx3-ubyte.gz",
            bytes=1648877,
            sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        Download(
            url=f"{_CVDF}/t10k-labels-idx1-ubyte.gz",
            bytes=4542,
            sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
)


def find(folder: Path) -> FoundFiles:
    """Return the idx files in `folder`: a part is its images and its labels together."""
    train, missing = _pair(folder, "train")
    test, _ = _pair(folder, "t10k")
    return FoundFiles(train=train, test=test, missing=missing)


def read(paths: tuple[Path, ...], part: str) -> Iterator[Block]:
    """Yield one block, uint8 [rows, 28, 28, 1] and labels, from an images and a labels file.

    Raises:
        UserError: a file is damaged, the two differ in count, or a label is above 9.
    """
    if not paths:
        return
    image_path, label_path = paths
    images = read_idx(image_path, dims=3)
    labels = read_idx(label_path, dims=1)
    if images.shape[1:] != (28, 28):
        raise UserError(f"'{image_path}' has images of {images.shape[1]} x {images.shape[2]}, MNIST's are 28 x 28")
    if len(images) != len(labels):
        raise UserError(
            f"'{image_path}' has {len(images):,} images but '{label_path}' {len(labels):,} labels: fetch both again"
        )
    wrong = np.flatnonzero(labels > 9)
    if len(wrong):
        raise UserError(f"'{label_path}' row {wrong[0] + 1:,} has label {labels[wrong[0]]}: labels are 0 to 9")
    yield images[..., np.newaxis], labels


def _pair(folder: Path, part: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    names = {
        f"{part}-images-idx3-ubyte.gz": packed(f"{part}-images-idx3-ubyte", f"{part}-images.idx3-ubyte"),
        f"{part}-labels-idx1-ubyte.gz": packed(f"{part}-labels-idx1-ubyte", f"{part}-labels.idx1-ubyte"),
    }
    found = {name: first(folder, INFO.name, candidates) for name, candidates in names.items()}
    missing = tuple(name for name, path in found.items() if path is None)
    return (tuple(path for path in found.values() if path is not None) if not missing else ()), missing


DATASET = Dataset(
    info=INFO,
    find=find,
    read=read,
    hold_out=last_tenth,
    twin=Twin(render=render_grey, block_rows=4_096, latent=16, separation=5.0, patch=4),
)
