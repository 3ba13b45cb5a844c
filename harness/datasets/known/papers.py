"""The papers' data sets, a table each: where their files are, which reader reads them, how a stand-in is made."""

from functools import partial
from pathlib import Path

from harness.datasets.csv_rows import read_number_rows
from harness.datasets.dataset import TEST, TRAIN, Dataset, Download, FileForm, FoundFiles, StandIn, first, packed
from harness.datasets.image_files import find_images
from harness.datasets.original_files import LibsvmFiles, read_cifar, read_idx_pair
from harness.datasets.synthetic import render_collisions, render_colour, render_grey, render_groups, render_plain

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
# Columns of a9a for each column of the census; a row has at most one 1 in each.
ADULT_GROUPS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)


def _from(address: str, *files: tuple[str, int | None, str | None]) -> tuple[Download, ...]:
    """Return what is downloaded from `address`: each file's name, bytes and SHA-256."""
    return tuple(Download(url=f"{address}/{name}", bytes=size, sha256=sha256) for name, size, sha256 in files)


ADULT = Dataset(
    name="adult",
    title="Adult (a9a)",
    features=(123,),
    classes=2,
    dtype="uint8",
    default_model="dnn",
    train_rows=32_561,
    test_rows=16_281,
    source="Becker, Kohavi: Adult, UCI 1996; binary features a9a by Platt, LIBSVM data page",
    standardise="none",
    value_range=(0, 1),
    shares=(24_720 / 32_561, 7_841 / 32_561),
    train_counts=(24_720, 7_841),
    test_counts=(12_435, 3_846),
    small=True,
    downloads=_from(
        f"{_LIBSVM}/binary",
        ("a9a", 2_329_875, "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
        ("a9a.t", 1_164_628, "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
    ),
    forms=(FileForm(train=(packed("a9a", ".gz", ".bz2"),), test=(packed("a9a.t", ".gz", ".bz2"),)),),
    read=LibsvmFiles(features=123, labels=(-1, 1), binary=True).read_files,
    stand_in=StandIn(render=render_groups(ADULT_GROUPS), rows=32_561, latent=8, separation=2.0),
)

ACOUSTIC = Dataset(
    name="acoustic",
    title="Acoustic (SensIT)",
    features=(50,),
    classes=3,
    dtype="float32",
    default_model="dnn",
    train_rows=78_823,
    test_rows=19_705,
    source="Duarte, Hu: Vehicle classification in distributed sensor networks, 2004; LIBSVM data page",
    shares=(0.25, 0.25, 0.5),  # the data page: the noise class was thinned until the classes stood 1:1:2
    small=True,
    downloads=_from(f"{_LIBSVM}/multiclass/vehicle", ("acoustic.bz2", None, None), ("acoustic.t.bz2", None, None)),
    forms=tuple(
        FileForm(train=(packed(name, ".bz2", ".gz"),), test=(packed(f"{name}.t", ".bz2", ".gz"),))
        for name in ("acoustic", "acoustic_scale")
    ),
    read=LibsvmFiles(features=50, labels=(1, 2, 3)).read_files,
    stand_in=StandIn(render=render_plain, rows=78_823, latent=10, separation=2.0),
)

_CVDF = "https://storage.googleapis.com/cvdf-datasets/mnist"
_MNIST_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


def _idx_pair(part: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (*packed(f"{part}-{kind}-idx{dims}-ubyte", ".gz"), *packed(f"{part}-{kind}.idx{dims}-ubyte", ".gz"))
        for kind, dims in (("images", 3), ("labels", 1))
    )


MNIST = Dataset(
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
    shares=tuple(count / 60_000 for count in _MNIST_COUNTS),
    train_counts=_MNIST_COUNTS,
    test_counts=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    channel_mean=(0.1307,),
    channel_std=(0.3081,),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist",),
    small=True,
    downloads=_from(
        _CVDF,
        ("train-images-idx3-ubyte.gz", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1-ubyte.gz", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3-ubyte.gz", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1-ubyte.gz", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    forms=(FileForm(train=_idx_pair("train"), test=_idx_pair("t10k")),),
    read=partial(read_idx_pair, shape=(28, 28), classes=10),
    stand_in=StandIn(render=render_grey, rows=60_000, chunk_rows=4_096, latent=16, separation=5.0, patch=4),
)

_KRIZ = "https://www.cs.toronto.edu/~kriz"
_KRIZHEVSKY = "Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009"


def _archive(name: str) -> FileForm:
    """Return the form of one archive, which has both parts."""
    both = ((f"{name}-binary.tar.gz", f"{name}-python.tar.gz"),)
    return FileForm(train=both, test=both)


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def _batches(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((name, f"cifar-10-batches-bin/{name}", f"cifar-10-batches-py/{name}") for name in names)


CIFAR10 = Dataset(
    name="cifar10",
    title="CIFAR-10",
    features=(32, 32, 3),
    classes=10,
    dtype="uint8",
    default_model="dnn",
    train_rows=50_000,
    test_rows=10_000,
    source=_KRIZHEVSKY,
    standardise="channel",
    value_range=(0, 255),
    shares=(0.1,) * 10,
    train_counts=(5_000,) * 10,
    test_counts=(1_000,) * 10,
    channel_mean=(0.4914, 0.4822, 0.4465),
    channel_std=(0.2470, 0.2435, 0.2616),
    small=True,
    downloads=_from(
        _KRIZ,
        ("cifar-10-binary.tar.gz", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    ),
    forms=(
        FileForm(train=_batches(tuple(f"{name}.bin" for name in _BATCHES)), test=_batches(("test_batch.bin",))),
        FileForm(train=_batches(_BATCHES), test=_batches(("test_batch",))),
        _archive("cifar-10"),
    ),
    read=partial(read_cifar, members={TRAIN: _BATCHES, TEST: ("test_batch",)}, classes=10),
    stand_in=StandIn(render=render_colour, rows=50_000, chunk_rows=4_096, latent=16, separation=3.5, patch=4),
)

CIFAR100 = Dataset(
    name="cifar100",
    title="CIFAR-100",
    features=(32, 32, 3),
    classes=100,
    dtype="uint8",
    default_model="cnn",
    train_rows=50_000,
    test_rows=10_000,
    source=_KRIZHEVSKY,
    standardise="channel",
    value_range=(0, 255),
    shares=(0.01,) * 100,
    train_counts=(500,) * 100,
    test_counts=(100,) * 100,
    channel_mean=(0.5071, 0.4865, 0.4409),
    channel_std=(0.2673, 0.2564, 0.2762),
    small=True,
    downloads=_from(
        _KRIZ, ("cifar-100-binary.tar.gz", None, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec")
    ),
    forms=(
        FileForm(train=(("cifar-100-binary/train.bin",),), test=(("cifar-100-binary/test.bin",),)),
        FileForm(train=(("cifar-100-python/train",),), test=(("cifar-100-python/test",),)),
        _archive("cifar-100"),
    ),
    # A binary row has the coarse label (of 20), then the fine one.
    read=partial(
        read_cifar, members={TRAIN: ("train",), TEST: ("test",)}, classes=100, label_bytes=2, key=b"fine_labels"
    ),
    stand_in=StandIn(render=render_colour, rows=50_000, chunk_rows=4_096, latent=32, separation=5.0, patch=4),
)


def _find_higgs(folder: Path) -> FoundFiles:
    """Return the one CSV file in `folder`: the whole set, else the largest piece of it."""
    whole = first(folder, "higgs", ("HIGGS.csv", "HIGGS.csv.gz"))
    if whole is not None:
        return FoundFiles(train=(whole,))
    for base in (folder / "higgs", folder):
        pieces = [path for pattern in ("HIGGS*.csv", "HIGGS*.csv.gz") for path in base.glob(pattern) if path.is_file()]
        if pieces:
            return FoundFiles(train=(max(pieces, key=lambda path: (path.stat().st_size, path.name)),))
    return FoundFiles(missing=("HIGGS.csv.gz",))


HIGGS = Dataset(
    name="higgs",
    title="HIGGS",
    features=(28,),
    classes=2,
    dtype="float32",
    default_model="dnn",
    train_rows=10_900_000,
    test_rows=100_000,
    source="Baldi, Sadowski, Whiteson: Searching for exotic particles, Nature Communications 5, 2014; UCI",
    shares=(0.47, 0.53),
    downloads=_from(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/00280",
        ("HIGGS.csv.gz", 2_816_407_858, "ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698"),
    ),
    search=_find_higgs,
    read=partial(read_number_rows, features=28, classes=2),
    separate_test=False,
    held_out_one_in=5,  # of a piece; of the whole set the last 100,000 (paper A, section 4.6)
    most_held_out=100_000,
    stand_in=StandIn(render=render_collisions, rows=1_000_000, latent=8, separation=0.9),
)

IMAGENET = Dataset(
    name="imagenet",
    title="ImageNet (ILSVRC 2012)",
    features=(224, 224, 3),
    classes=1000,
    dtype="uint8",
    default_model="resnet50",
    train_rows=1_281_167,
    test_rows=50_000,
    source="Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge, IJCV 2015",
    standardise="channel",
    value_range=(0, 255),
    shares=(1 / 1000,) * 1000,
    channel_mean=(0.485, 0.456, 0.406),
    channel_std=(0.229, 0.224, 0.225),
    search=find_images,  # real images stay in their files, so nothing reads their rows
    held_out_one_in=25,  # the original's own proportion
    # Small chunks: one of 64 images of 224 x 224 pixels is 10 MB, and its scores 0.6 MB.
    stand_in=StandIn(
        render=render_colour, rows=128, chunk_rows=64, latent=32, separation=6.0, patch=8, least_test_rows=32
    ),
)

DATASETS = (ACOUSTIC, ADULT, CIFAR10, CIFAR100, HIGGS, IMAGENET, MNIST)
