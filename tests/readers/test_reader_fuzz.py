"""Damaged data files of every kind: rows or one sentence, never a traceback."""

import bz2
import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import datasets
from harness.base.errors import UserError
from harness.datasets.dataset import TEST, TRAIN
from harness.readers.peers import Peers
from harness.readers.script_data import DataSetRequest, load_rank_rows

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (12, 4)).astype(np.uint8), np.arange(12) % 3
PIXELS = RNG.integers(0, 256, (3, 3072)).astype(np.uint8)


def npz(save: Callable[..., None]) -> bytes:
    content = io.BytesIO()
    save(content, x_train=X, y_train=Y, x_test=X[:4].astype(np.float32), y_test=Y[:4])
    return content.getvalue()


def hdf5() -> bytes:
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file["x"], file["y"] = X, Y
        file.create_dataset("x_test", data=X[:4], compression="gzip")
        file["y_test"] = Y[:4]
    return content.getvalue()


def netcdf() -> bytes:
    file = netCDF4.Dataset("memory.nc", "w", format="NETCDF3_CLASSIC", memory=2048)
    file.createDimension("rows", 12)
    file.createDimension("width", 4)
    file.createVariable("x", "i1", ("rows", "width"))[:] = X.view(np.int8)
    file.createVariable("y", "i4", ("rows",))[:] = Y
    return bytes(file.close())


def tar(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


CSV = "label,a,b\n" + "".join(f"{row % 2},{row}.5,{row}\n" for row in range(9))
BINARY = b"".join(bytes([label]) + row.tobytes() for label, row in enumerate(PIXELS))
PICKLE = pickle.dumps({b"data": PIXELS, b"labels": [0, 1, 2]}, protocol=2)
IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(2 * 784)
LABELS = bytes([0, 0, 8, 1, 0, 0, 0, 2, 3, 4])
HIGGS = "".join(",".join([f"{row % 2}", *["0.25"] * 28]) + "\n" for row in range(4)).encode()
# The data set, the files' names, and their content; the first one is damaged.
KINDS: dict[str, tuple[str, dict[str, bytes]]] = {
    "csv": ("file", {"own.csv": CSV.encode()}),
    "npz": ("file", {"own.npz": npz(np.savez)}),
    "compressed npz": ("file", {"own.npz": npz(np.savez_compressed)}),
    "hdf5": ("file", {"own.h5": hdf5()}),
    "idx images": ("mnist", {"train-images-idx3-ubyte": IDX, "train-labels-idx1-ubyte": LABELS}),
    "idx labels": ("mnist", {"train-labels-idx1-ubyte.gz": gzip.compress(LABELS), "train-images-idx3-ubyte": IDX}),
    "cifar bin": ("cifar10", {f"data_batch_{number}.bin": BINARY for number in range(1, 6)}),
    "cifar pickle": ("cifar10", {f"data_batch_{number}": PICKLE for number in range(1, 6)}),
    "cifar tar": ("cifar10", {"cifar-10-binary.tar.gz": tar({f"data_batch_{n}.bin": BINARY for n in range(1, 6)})}),
    "libsvm": ("adult", {"a9a": b"-1 3:1 11:1\n+1 5:1 7:1\n" * 3}),
    "bz2": ("acoustic", {"acoustic.bz2": bz2.compress(b"1 1:0.5 3:0.25\n3 2:1\n" * 4)}),
    "higgs": ("higgs", {"HIGGS.csv.gz": gzip.compress(HIGGS)}),
}
READERS = {"csv": CSV.encode(), "npz": npz(np.savez), "hdf5": hdf5(), "netcdf": netcdf()}

INTERESTING = (b"\x00", b"\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"9", b"-", b",", b"\n", b"nan", b"1e999", b'"')
damages = st.lists(
    st.tuples(st.sampled_from(["cut", "replace", "insert", "drop"]), st.floats(0, 1), st.sampled_from(INTERESTING)),
    min_size=1,
    max_size=3,
)


def damaged(content: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for what, where, word in changes:
        place = int(where * len(content))
        rest = {"cut": len(content), "replace": place + len(word), "insert": place, "drop": place + 4}[what]
        content = content[:place] + (word if what in ("replace", "insert") else b"") + content[rest:]
    return content


quick = settings(
    max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


def one_sentence(error: UserError) -> None:
    assert "\n" not in str(error) and len(str(error)) < 600, str(error)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
@quick
@given(changes=damages)
def test_damaged_files_of_data_sets(tmp_path, kind, changes):
    name, files = KINDS[kind]
    for number, (file, content) in enumerate(files.items()):
        (tmp_path / file).write_bytes(content if number else damaged(content, changes))
    entry = datasets.dataset_info(name)
    found = entry.find(tmp_path)
    own = (tmp_path / next(iter(files)),)
    train, test = (own, own) if name == "file" else (found.train, found.test)
    try:
        for part, paths in ((TRAIN, train), (TEST, test)):
            for x, y in entry.read(paths, part):
                assert len(x) == len(y)
    except UserError as error:
        one_sentence(error)


@pytest.mark.parametrize("kind", READERS)
@quick
@given(changes=damages)
def test_damaged_files_of_scripts(tmp_path, kind, changes):
    path: Path = tmp_path / "data"
    path.write_bytes(damaged(READERS[kind], changes))
    try:
        for part in load_rank_rows(DataSetRequest(name=kind, train_file=path), Peers()).values():
            assert len(part.data) == len(part.labels)
    except UserError as error:
        one_sentence(error)
