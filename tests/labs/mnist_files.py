"""Original files of MNIST, made small."""

import gzip
from pathlib import Path

import numpy as np


def write_mnist(folder: Path, train: int = 30, test: int = 10) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    for part, rows in (("train", train), ("t10k", test)):
        for kind, shape, top in (("images-idx3", (rows, 28, 28), 256), ("labels-idx1", (rows,), 10)):
            header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            values = rng.integers(0, top, shape).astype(np.uint8).tobytes()
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + values))
