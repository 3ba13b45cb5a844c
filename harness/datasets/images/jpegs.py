"""Synthetic JPEGs on disk, so that the input path can be measured where ImageNet is absent.

Their content is the twin's (`harness.datasets.synthetic`) with noise: about the size and the decoding time of
ImageNet's photographs, which have 400 x 350 pixels and 110 kB on average.
"""

import io
from itertools import chain
from pathlib import Path

import numpy as np

from harness.datasets import synthetic
from harness.datasets.cache import cache_folder, locked, publish
from harness.datasets.dataset import TEST, TRAIN, Dataset
from harness.datasets.imagenet import sized

VERSION = 1
_SIDE, _QUALITY, _NOISE = 400, 90, 12


def jpeg_folder(entry: Dataset, rows: int, classes: int) -> Path:
    """Return a folder of `rows` synthetic training JPEGs and their test part, written the first time."""
    folder = cache_folder() / "images" / "synthetic" / f"v{VERSION}-{classes}-{rows}"
    if not folder.exists():
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.exists():
                with publish(folder) as staging:
                    _write(sized(entry, _SIDE, classes), rows, staging)
    return folder


def _write(entry: Dataset, rows: int, folder: Path) -> None:
    from PIL import Image

    assert entry.twin is not None
    test_rows = synthetic.test_rows(entry.info.test_rows, rows, entry.twin.least_test_rows)
    for part, name, count in ((TRAIN, "train", rows), (TEST, "val", test_rows)):
        noise = np.random.default_rng([VERSION, part == TRAIN])
        blocks = (zip(x, y, strict=True) for x, y in synthetic.blocks(entry, count, part))
        for number, (pixels, label) in enumerate(chain.from_iterable(blocks)):
            rough = pixels + noise.normal(0, _NOISE, pixels.shape)
            content = io.BytesIO()
            Image.fromarray(np.clip(rough, 0, 255).astype(np.uint8)).save(content, "JPEG", quality=_QUALITY)
            place = folder / name / f"n{label:08d}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}_{number:08d}.JPEG").write_bytes(content.getvalue())
