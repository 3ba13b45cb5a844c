"""Acoustic (SensIT vehicle, acoustic sensors): LIBSVM text, 50 features, three classes."""

from collections.abc import Iterator
from pathlib import Path

from harness.datasets.dataset import Block, Dataset, DatasetInfo, Download, FoundFiles, Twin, first, last_tenth, packed
from harness.datasets.synthetic import render_plain
from harness.datasets.text import read_libsvm

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/vehicle"
_FEATURES = 50

INFO = DatasetInfo(
    name="acoustic",
    title="Acoustic (SensIT)",
    features=(_FEATURES,),
    classes=3,
    dtype="float32",
    default_model="dnn",
    train_rows=78_823,
    test_rows=19_705,
    source="Duarte, Hu: Vehicle classification in distributed sensor networks, 2004; LIBSVM data page",
    shares=(0.25, 0.25, 0.5),  # the data page: the noise class was thinned until the classes stood 1:1:2
    twin_rows=78_823,
    downloads=(Download(url=f"{_LIBSVM}/acoustic.bz2"), Download(url=f"{_LIBSVM}/acoustic.t.bz2")),
)


def find(folder: Path) -> FoundFiles:
    """Return the LIBSVM files in `folder`, else their scaled versions."""
    for name in ("acoustic", "acoustic_scale"):
        train = first(folder, INFO.name, packed(name, suffixes=(".bz2", ".gz")))
        test = first(folder, INFO.name, packed(f"{name}.t", suffixes=(".bz2", ".gz")))
        if train is not None:
            return FoundFiles(train=(train,), test=(test,) if test else ())
    return FoundFiles(missing=("acoustic.bz2",))


def read(paths: tuple[Path, ...], part: str) -> Iterator[Block]:
    """Yield one block, float32 [rows, 50], and labels 0..2 (1..3 in the file).

    Raises:
        UserError: a line is bad.
    """
    for path in paths:
        yield read_libsvm(path, _FEATURES, (1, 2, 3))


DATASET = Dataset(
    info=INFO,
    find=find,
    read=read,
    hold_out=last_tenth,
    twin=Twin(render=render_plain, latent=10, separation=2.0),
)
