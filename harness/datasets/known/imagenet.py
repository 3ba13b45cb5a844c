"""ImageNet (ILSVRC 2012): photographs of a thousand classes, and synthetic images of any size in their place."""

from collections.abc import Iterator
from pathlib import Path

from harness.datasets.dataset import Block, Dataset, DatasetInfo, Twin
from harness.datasets.images.index import find
from harness.datasets.synthetic import render_colour

_CLASSES = 1000

INFO = DatasetInfo(
    name="imagenet",
    title="ImageNet (ILSVRC 2012)",
    features=(224, 224, 3),
    classes=_CLASSES,
    dtype="uint8",
    default_model="resnet50",
    train_rows=1_281_167,
    test_rows=50_000,
    source="Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge, IJCV 2015",
    standardise="channel",
    value_range=(0, 255),
    shares=(1 / _CLASSES,) * _CLASSES,
    channel_mean=(0.485, 0.456, 0.406),
    channel_std=(0.229, 0.224, 0.225),
    twin_rows=128,
)


def read(paths: tuple[Path, ...], part: str) -> Iterator[Block]:
    """Yield no rows: real images stay in their files (`harness.datasets.images`)."""
    yield from ()


def hold_out(rows: int) -> int:
    """Return how many of `rows` images are held out for test: one in 25, the original's own proportion."""
    return max(1, rows // 25)


DATASET = Dataset(
    info=INFO,
    find=find,
    read=read,
    hold_out=hold_out,
    # Small blocks: one of 64 images of 224 x 224 pixels is 10 MB, and its scores 0.6 MB.
    twin=Twin(render=render_colour, block_rows=64, latent=32, separation=6.0, patch=8, least_test_rows=32),
)
