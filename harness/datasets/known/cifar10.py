"""CIFAR-10: 32 x 32 colour images of ten classes, in Krizhevsky's binary or Python batches."""

from collections.abc import Iterator
from pathlib import Path

from harness.datasets.cifar import BATCHES, TEST_BATCH, read_binary, read_python
from harness.datasets.dataset import TRAIN, Block, Dataset, DatasetInfo, Download, Found, Twin, first, last_tenth
from harness.datasets.synthetic import render_colour

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


def find(folder: Path) -> Found:
    """Return the unpacked batches in `folder`, else an archive, which holds both parts."""
    best: tuple[str, ...] = _ARCHIVES[:1]
    for suffix in (".bin", ""):
        batches = {f"{name}{suffix}": _batch(folder, f"{name}{suffix}") for name in BATCHES}
        train = tuple(path for path in batches.values() if path is not None)
        if len(train) == len(BATCHES):
            test = _batch(folder, f"{TEST_BATCH}{suffix}")
            return Found(train=train, test=(test,) if test else ())
        if train:
            best = tuple(name for name, path in batches.items() if path is None)
    archive = first(folder, INFO.name, _ARCHIVES)
    return Found(train=(archive,), test=(archive,)) if archive else Found(missing=best)


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
