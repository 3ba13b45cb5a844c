"""CIFAR-10: 32 x 32 colour images of ten classes; and the binary and Python batches, which are CIFAR-100's too."""

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.datasets.dataset import (
    TRAIN,
    Array,
    Block,
    Dataset,
    DatasetInfo,
    Download,
    FoundFiles,
    Twin,
    first,
    last_tenth,
)
from harness.datasets.synthetic import render_colour

BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"

_PIXELS = 32 * 32 * 3
# What a pickled numpy array needs; anything else in a downloaded pickle could run code.
_PICKLED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Where the labels are: the last of `count` bytes before a row's pixels, the pickled list called `key`.

    They are 0 to `classes` - 1.
    """

    count: int = 1
    key: bytes = b"labels"
    classes: int = 10


# All that damaged pickles raise; the first array that one asks for may be of any size.
_DAMAGE = (
    pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError, ImportError,
    OverflowError, MemoryError,
)  # fmt: skip
_TEN = Labels()


def read_binary(path: Path, batches: tuple[str, ...], where: Labels = _TEN) -> Iterator[Block]:
    """Yield the batches of a ``.bin`` file, or those called `batches` of a tar archive of such files."""
    size = where.count + _PIXELS
    for name, content in _contents(path, tuple(f"{batch}.bin" for batch in batches)):
        if not content or len(content) % size:
            raise UserError(f"{name} is cut: {len(content):,} bytes are not whole rows of {size:,}; fetch it again")
        rows = np.frombuffer(content, np.uint8).reshape(-1, size)
        yield _images(rows[:, where.count :]), _labels(name, rows[:, where.count - 1], where.classes)


def read_python(path: Path, batches: tuple[str, ...], where: Labels = _TEN) -> Iterator[Block]:
    """Yield the batches of a pickle file, or those called `batches` of a tar archive of such files."""
    for name, content in _contents(path, batches):
        try:
            batch: dict[bytes, Any] = _Unpickler(io.BytesIO(content), encoding="bytes").load()
            pixels, labels = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[where.key])
        except _DAMAGE as error:
            raise UserError(f"{name} is no CIFAR Python batch ({error}): fetch it again") from error
        if pixels.ndim != 2 or pixels.shape[1] != _PIXELS or len(pixels) != len(labels):
            raise UserError(f"{name} has images {pixels.shape} and {len(labels):,} labels: fetch it again")
        yield _images(pixels), _labels(name, labels, where.classes)


class _Unpickler(pickle.Unpickler):
    """An unpickler that builds numpy arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _contents(path: Path, members: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield a name for messages and the content of the file, or of each of the archive's `members`."""
    if not path.name.endswith(".tar.gz"):
        yield f"'{path}'", path.read_bytes()
        return
    found = dict.fromkeys(members, b"")
    try:
        with tarfile.open(path, "r|gz") as archive:  # one pass: a gzip file cannot be searched
            for member in archive:
                name = Path(member.name).name
                file = archive.extractfile(member) if name in found else None
                if file is not None:
                    found[name] = file.read()
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"'{path}' is a cut or damaged archive ({error}): fetch it again") from error
    for name, content in found.items():
        yield f"'{path}' member {name}", content


def _images(pixels: Array) -> Array:
    """Return [rows, 3072], stored as planes of red, green and blue, as [rows, 32, 32, 3]."""
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _labels(name: str, labels: Array, classes: int) -> Array:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise UserError(f"{name} row {wrong[0] + 1:,} has label {labels[wrong[0]]}: labels are 0 to {classes - 1}")
    return labels


INFO = DatasetInfo(
    name="cifar10",
    title="CIFAR-10",
    features=(32, 32, 3),
    classes=10,
    dtype="uint8",
    default_model="dnn",
    train_rows=50_000,
    test_rows=10_000,
    source="Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009",
    standardise="channel",
    value_range=(0, 255),
    shares=(0.1,) * 10,
    train_counts=(5_000,) * 10,
    test_counts=(1_000,) * 10,
    channel_mean=(0.4914, 0.4822, 0.4465),
    channel_std=(0.2470, 0.2435, 0.2616),
    twin_rows=50_000,
    downloads=(
        Download(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            bytes=170052171,
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
)
_ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
_FOLDERS = ("", "cifar-10-batches-bin/", "cifar-10-batches-py/")


def find(folder: Path) -> FoundFiles:
    """Return the unpacked batches in `folder`, else an archive, which holds both parts."""
    best: tuple[str, ...] = _ARCHIVES[:1]
    for suffix in (".bin", ""):
        batches = {f"{name}{suffix}": _batch(folder, f"{name}{suffix}") for name in BATCHES}
        train = tuple(path for path in batches.values() if path is not None)
        if len(train) == len(BATCHES):
            test = _batch(folder, f"{TEST_BATCH}{suffix}")
            return FoundFiles(train=train, test=(test,) if test else ())
        if train:
            best = tuple(name for name, path in batches.items() if path is None)
    archive = first(folder, INFO.name, _ARCHIVES)
    return FoundFiles(train=(archive,), test=(archive,)) if archive else FoundFiles(missing=best)


def read(paths: tuple[Path, ...], part: str) -> Iterator[Block]:
    """Yield one block per batch, uint8 [rows, 32, 32, 3] and labels 0..9.

    Raises:
        UserError: a batch is cut or damaged, lacks in the archive, or has a label above 9.
    """
    batches = BATCHES if part == TRAIN else (TEST_BATCH,)
    for path in paths:
        python = "python" in path.name or path.suffix == ""
        yield from (read_python if python else read_binary)(path, batches)


def _batch(folder: Path, name: str) -> Path | None:
    return first(folder, INFO.name, (f"{inner}{name}" for inner in _FOLDERS))


DATASET = Dataset(
    info=INFO,
    find=find,
    read=read,
    hold_out=last_tenth,
    twin=Twin(render=render_colour, block_rows=4_096, latent=16, separation=3.5, patch=4),
)
