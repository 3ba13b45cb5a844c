"""A user's own .csv, .npz or .h5 file: what is made of it, and what is refused."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from harness import datasets
from harness.base.errors import UserError
from harness.schema.workload import Workload
from tests.labs.sentences import refuses


def own(path: Path) -> datasets.Prepared:
    """Prepare a user's own file."""
    dataset = datasets.choose_dataset(None, str(path))
    workload = Workload(dataset=dataset, model="dnn", batch_per_rank=4, data_file=str(path))
    return datasets.prepare(datasets.locate(workload, None))


@pytest.mark.parametrize("header", ["", "a,target,b\n", "0,label,1\n"])
def test_own_csv(cache, tmp_path, header):
    """The label is the column that a header names, else the first: as `DataSet` reads the same file."""
    path = tmp_path / "own.csv"
    lines = [f"{row}.5,{row % 2},{2 * row}" for row in range(20)]
    if not header:
        lines = [f"{row % 2},{row}.5,{2 * row}" for row in range(20)]
    path.write_text(header + "\n".join(lines))
    prepared = own(path)
    assert prepared.train_x.shape == (18, 2) and prepared.record.classes == 2 and prepared.record.held_out
    rows = np.concatenate([prepared.train_x, prepared.test_x])
    labels = np.concatenate([prepared.train_y, prepared.test_y])
    order = np.argsort(rows[:, 0])
    assert rows[order].tolist() == [[row + 0.5, 2 * row] for row in range(20)]
    assert labels[order].tolist() == [row % 2 for row in range(20)] and sorted(prepared.test_y) == [0, 1]
    assert prepared.record.held_out_seed == 0
    assert ("--label" in prepared.record.note) == (not header)
    if header:
        named = "target" if "target" in header else "label"
        assert named in prepared.record.note
    np.testing.assert_allclose(((prepared.train_x - prepared.shift) * prepared.factor).std(axis=0), 1, rtol=1e-5)


def test_own_labels_are_mapped_and_it_is_said(cache, tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("\n".join(f"{[7, -3, 100][row % 3]},{row}" for row in range(30)))
    prepared = own(path)
    rows = np.concatenate([prepared.train_x, prepared.test_x])[:, 0].astype(int)
    labels = np.concatenate([prepared.train_y, prepared.test_y])
    assert [labels[rows == row].tolist() for row in range(3)] == [[1], [0], [2]] and prepared.record.classes == 3
    assert "own.csv" in prepared.record.note


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("parts", [("x", "y"), ("x_train", "y_train")])
def test_own_arrays(cache, tmp_path, suffix, parts):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (20, 4, 4, 1)).astype(np.uint8)
    arrays = {parts[0]: x, parts[1]: np.arange(20) % 3}
    if parts[0] != "x":
        arrays |= {"x_test": x[:5], "y_test": np.arange(5) % 3}
    path = tmp_path / f"own{suffix}"
    if suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    prepared = own(path)
    held_out = parts[0] == "x"
    assert prepared.record.held_out is held_out and prepared.train_x.dtype == np.uint8
    assert (prepared.record.train_rows, prepared.record.test_rows) == ((18, 2) if held_out else (20, 5))
    rows = np.concatenate([prepared.train_x, prepared.test_x])
    assert sorted(rows[:20].tolist()) == sorted(x.tolist())
    if not held_out:
        np.testing.assert_array_equal(prepared.train_x, x)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "is empty"),
        ("1\n2\n", "one column only"),
        ("a,b,label\n1,2,0\n1,x,1\n", "line 3: invalid value 'x'"),
        ("a,b,label\n1,2,0\n1,,1\n", "column 'b' is missing in 1 of 2 rows"),
        ("a,label,b\n1,0,2\n1,0.5,2\n", "line 3 has label 0.5"),
        ("1,2,0\n1,2,1,5\n", "line 2: expected 3 columns, got 4"),
        ("1,2,0\n", "one row only"),
        ("1,2,0\n1,2,0\n", "one class only"),
        ("a,b,label\n", "no rows"),
        ("1,,3\n0,1,2\n1,1,2\n", "line 1 column 2 is missing"),
        ("0,NA,3\n0,1,2\n1,1,2\n", "line 1 column 2 is missing"),
    ],
)
def test_own_csv_refuses(cache, tmp_path, content, part):
    path = tmp_path / "own.csv"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        own(path)
    assert part in str(caught.value) and "own.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"a": np.zeros(3)}, "has arrays a: name features and labels"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "give as many rows of numbers as labels"),
        ({"x": np.zeros((3, 2)), "y": np.zeros((3, 2))}, "y has shape (3, 2)"),
        ({"x": np.array([[0], [np.nan], [0]]), "y": np.arange(3)}, "x row 1 has NaN"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1.5, 1])}, "y row 1 has label 1.5"),
        ({"x": np.array([{}, {}, {}]), "y": np.arange(3)}, "not a readable .npz"),
        ({"x": np.zeros((3, 0)), "y": np.arange(3)}, "x has shape (3, 0)"),
        ({"x": np.zeros((0, 2)), "y": np.arange(0)}, "has no rows"),
        (
            {"x_train": np.zeros((3, 2)), "y_train": np.arange(3), "x_test": np.zeros((3, 4)), "y_test": np.arange(3)},
            "give training and test rows the same features",
        ),
    ],
)
def test_own_arrays_refuse(cache, tmp_path, arrays, part):
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)
    with pytest.raises(UserError) as caught:
        own(path)
    assert part in str(caught.value)


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_own_file_of_another_kind(cache, tmp_path, suffix):
    path = tmp_path / f"own{suffix}"
    path.write_text("this is text")
    with refuses("is not a readable"):
        own(path)


def test_bytes_and_fractions_do_not_mix(cache, tmp_path):
    """Pixels to train on, the same divided by 255 to test on: 0.7 is not 0."""
    path = tmp_path / "own.npz"
    x = np.full((4, 2), 0.7, np.float32)
    np.savez(path, x_train=(x * 255).astype(np.uint8), y_train=np.arange(4) % 2, x_test=x, y_test=np.arange(4) % 2)
    prepared = own(path)
    np.testing.assert_array_equal(prepared.test_x, x)
    np.testing.assert_array_equal(prepared.train_x, np.float32(178))


def test_an_npy_file_under_another_name(cache, tmp_path):
    path = tmp_path / "own.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros((3, 2)))
    with refuses("is not a readable"):
        own(path)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda file: file.create_group("x"), "has arrays y: name features and labels"),
        (lambda file: file.__setitem__("x", h5py.SoftLink("/nowhere")), "x is a link to another file or to nothing"),
        (lambda file: file.__setitem__("x", h5py.ExternalLink("b.h5", "/x")), "x is a link to another file"),
        (lambda file: file.__setitem__("x", h5py.Empty("f")), "has arrays y: name features and labels"),
        (lambda file: file.__setitem__("x", np.zeros((3, 0))), "x has shape (3, 0)"),
        (
            lambda file: file.create_dataset("x", (2**50, 2), "f", chunks=(1, 2)),
            "give as many rows of numbers as labels",
        ),
    ],
)
def test_own_hdf5_refuses(cache, tmp_path, make, part):
    path = tmp_path / "own.h5"
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(3)
        make(file)
    with pytest.raises(UserError) as caught:
        own(path)
    assert part in str(caught.value)


def test_an_array_too_large_for_memory_is_told(cache, tmp_path):
    path = tmp_path / "own.h5"
    with h5py.File(path, "w") as file:
        for name in ("x", "y"):
            file.create_dataset(name, (2**50, 1), "f8", chunks=(1, 1))
    with refuses("is not a readable"):
        own(path)
