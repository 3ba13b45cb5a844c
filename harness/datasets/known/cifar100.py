"""CIFAR-100: 32 x 32 colour images of a hundred classes, in Krizhevsky's binary or Python files."""

from collections.abc import Iterator
from pathlib import Path

from harness.datasets.dataset import TRAIN, Block, Dataset, DatasetInfo, Download, FoundFiles, Twin, first, last_tenth
from harness.datasets.known.cifar10 import Labels, read_binary, read_python
from harness.datasets.synthetic import render_colour

INFO = DatasetInfo(
    name="cifar100",
    title="CIFAR-100",
    features=(32, 32, 3),
    classes=100,
    dtype="uint8",
    default_model="cnn",
    train_rows=50_000,
    test_rows=10_000,
    source="Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009",
    standardise="channel",
    value_range=(0, 255),
    shares=(0.01,) * 100,
    train_counts=(500,) * 100,
    test_counts=(100,) * 100,
    channel_mean=(0.5071, 0.4865, 0.4409),
    channel_std=(0.2673, 0.2564, 0.2762),
    twin_rows=50_000,
    downloads=(
        Download(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
)
# A binary row has the coarse label (of 20), then the fine one.
_FINE = Labels(count=2, key=b"fine_labels", classes=100)
_ARCHIVES = ("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz")
_UNPACKED = (("cifar-100-binary/", ".bin"), ("cifar-100-python/", ""))


def find(folder: Path) -> FoundFiles:
    """Return the unpacked files in `folder`, else an archive, which holds both parts."""
    for inner, suffix in _UNPACKED:
        train = first(folder, INFO.name, (f"{inner}train{suffix}",))
        if train is not None:
            test = first(folder, INFO.name, (f"{inner}test{suffix}",))
            return FoundFiles(train=(train,), test=(test,) if test else ())
    archive = first(folder, INFO.name, _ARCHIVES)
    return FoundFiles(train=(archive,), test=(archive,)) if archive else FoundFiles(missing=_ARCHIVES[:1])


def read(paths: tuple[Path, ...], part: str) -> Iterator[Block]:
    """Yield one block, uint8 [rows, 32, 32, 3] and the fine labels 0..99.

    Raises:
        UserError: a file is cut or damaged, lacks in the archive, or has a label above 99.
    """
    for path in paths:
        python = "python" in path.name or path.suffix == ""
        yield from (read_python if python else read_binary)(path, ("train" if part == TRAIN else "test",), _FINE)


DATASET = Dataset(
    info=INFO,
    find=find,
    read=read,
    hold_out=last_tenth,
    twin=Twin(render=render_colour, block_rows=4_096, latent=32, separation=5.0, patch=4),
)
