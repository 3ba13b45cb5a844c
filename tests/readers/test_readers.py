"""Readers for scripts: every rank gets its own rows, over all ranks each row is there exactly once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import DataSet, datasets
from harness.datasets.csv_form import CsvSettings
from harness.readers import row_sources
from harness.readers.peers import Peers, find_peers
from harness.readers.row_sources import TEST, TRAIN, VALIDATION, CsvRows, ImageRows
from harness.readers.script_data import DataSetRequest, load_rank_rows
from tests.labs.sentences import refuses


def together(size, action):
    """Run ``action(peers)`` for `size` ranks at once, threads here, and return the results in order of ranks."""
    barrier = threading.Barrier(size, timeout=120)
    board = [None] * size

    def rank_of(rank):
        def gather(value):
            board[rank] = value
            barrier.wait()
            found = list(board)
            barrier.wait()
            return found

        return action(Peers(rank=rank, size=size, gather=gather))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank_of, range(size)))


def read_all(size, **arguments):
    request = DataSetRequest(**arguments)
    return together(size, lambda peers: load_rank_rows(request, peers))


def numbered(rows, features=3):
    """Return features that name their row, and labels of two classes."""
    return np.arange(rows * features, dtype=np.float32).reshape(rows, features), np.arange(rows) % 2


def covered(found, part, x):
    np.testing.assert_array_equal(np.concatenate([parts[part].data for parts in found]), x)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 23), min_size=1, max_size=3),
    ranks=st.integers(1, 4),
    piece=st.integers(1, 64),
    header=st.booleans(),
    newline=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    blanks=st.lists(st.integers(0, 3), min_size=24, max_size=24),
)
def test_csv_rows_are_covered_exactly_once(tmp_path_factory, sizes, ranks, piece, header, newline, end, blanks):
    folder = tmp_path_factory.mktemp("csv")
    x, y = numbered(sum(sizes))
    edges = np.cumsum([0, *sizes])
    for number in range(len(sizes)):
        lines = [f"{label},{','.join(map(str, row))}" for row, label in zip(x, y, strict=True)]
        rows = lines[edges[number] : edges[number + 1]]
        # Blank lines after each row, and none, one or several newlines at the end.
        spaced = "".join(row + end * (1 + blank) for row, blank in zip(rows, blanks, strict=False))
        text = f"label,a,b,c{end}" * header + (spaced if newline else spaced.rstrip("\r\n"))
        (folder / f"{number}.csv").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sources, "PIECE_BYTES", piece)

        def read(peers):
            source = CsvRows(folder, None, peers)
            (rows,) = source.blocks
            return rows, source.read([datasets.shards.split_evenly(rows, peers.size, peers.rank)])

        found = together(ranks, read)
    assert {rows for rows, _ in found} == {sum(sizes)}
    np.testing.assert_array_equal(np.concatenate([part for _, (part, _) in found]), x)
    np.testing.assert_array_equal(np.concatenate([labels for _, (_, labels) in found]), y)


def test_blank_lines_are_no_rows_of_any_part(tmp_path):
    x, _ = numbered(100)
    rows = [f"{row % 2},{','.join(map(str, values))}" for row, values in enumerate(x)]
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n" * 13)
    (parts,) = read_all(1, name="csv", train_file=tmp_path / "data.csv", valid_pct=0.1)
    np.testing.assert_array_equal(parts[TRAIN].data, x[:90])
    np.testing.assert_array_equal(parts[VALIDATION].data, x[90:])


def test_csv_parts_are_held_out_of_all_rows_and_classes_agree(tmp_path):
    """Labels -1 and 1 as in the field's files; the first rank's rows may have one class only."""
    x, _ = numbered(42)
    rows = [f"{-1 if row < 30 else 1},{','.join(map(str, values))}" for row, values in enumerate(x)]
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    found = read_all(4, name="csv", train_file=tmp_path / "data.csv", valid_pct=1 / 6, test_pct=1 / 6)
    covered(found, TRAIN, x[:28])
    covered(found, VALIDATION, x[28:35])
    covered(found, TEST, x[35:])
    assert {parts[TRAIN].labels.shape[1] for parts in found} == {2}
    assert found[0][TRAIN].labels[:, 0].all() and found[3][TEST].labels[:, 1].all()


def test_a_bad_value_is_named_by_the_line_of_the_file(tmp_path):
    (tmp_path / "data.csv").write_text("".join(f"1,{row}\n" if row != 7 else "1,x\n" for row in range(10)))
    source = CsvRows(tmp_path / "data.csv", None, Peers())
    assert source.read([range(0, 5)])[0][:, 0].tolist() == [0, 1, 2, 3, 4]
    with refuses("line 8", "'x'"):
        source.read([range(5, 10)])


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_members_are_read_by_slices(tmp_path, compressed):
    x, y = numbered(42)
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    found = read_all(4, name="npz", train_file=tmp_path / "data.npz", normalize=2.0)
    covered(found, TRAIN, x / 2)
    covered(found, TEST, x[:9] / 2)
    assert max(len(parts[TRAIN].data) for parts in found) - min(len(parts[TRAIN].data) for parts in found) == 1


def test_hdf5_by_names_and_by_classes(tmp_path):
    import h5py

    x, y = numbered(42)
    with h5py.File(tmp_path / "named.h5", "w") as file:
        file["x"], file["y"] = x, y
    covered(read_all(4, name="hdf5", train_file=tmp_path / "named.h5"), TRAIN, x)
    with h5py.File(tmp_path / "classes.h5", "w") as file:
        file["cat"], file["dog"], file["eel"] = x[:10], x[10:21], x[21:]
    found = read_all(4, name="hdf5", train_file=tmp_path / "classes.h5")
    rows = np.concatenate([parts[TRAIN].data for parts in found])
    labels = np.concatenate([parts[TRAIN].labels for parts in found]).argmax(axis=1)
    order = rows[:, 0].argsort()
    np.testing.assert_array_equal(rows[order], x)
    np.testing.assert_array_equal(labels[order], [0] * 10 + [1] * 11 + [2] * 21)
    assert all(len(set(parts[TRAIN].labels.argmax(axis=1))) == 3 for parts in found), "a rank lacks a class"


@pytest.mark.parametrize("form", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4"])
def test_netcdf_in_all_its_forms(tmp_path, form):
    """As the field's PNetCDF files: bytes that stand for 0..255, integer labels, rows along the record dimension."""
    import netCDF4

    images = np.arange(42 * 4, dtype=np.uint8).reshape(42, 2, 2)
    with netCDF4.Dataset(tmp_path / "data.nc", "w", format=form) as file:
        for name, size in (("rows", None), ("height", 2), ("width", 2)):
            file.createDimension(name, size)
        file.createVariable("images", "i1", ("rows", "height", "width"))[:] = images.view(np.int8)
        file.createVariable("labels", "i4", ("rows",))[:] = np.arange(42) % 3
    # One after the other, not in threads, which the library does not stand; so without classes, which are gathered.
    request = DataSetRequest(name="pnetcdf", train_file=tmp_path / "data.nc", normalize=255.0, one_hot=False)
    found = [load_rank_rows(request, Peers(rank=rank, size=4)) for rank in range(4)]
    covered(found, TRAIN, images.astype(np.float32) / np.float32(255))
    assert np.concatenate([parts[TRAIN].labels for parts in found]).tolist() == [row % 3 for row in range(42)]
    assert load_rank_rows(DataSetRequest(name="netcdf", train_file=tmp_path / "data.nc"), Peers())[
        TRAIN
    ].labels.shape == (42, 3)


@pytest.mark.parametrize(("name", "classes", "shape"), [("MNIST", 10, (28, 28, 1)), ("CIFAR100", 100, (32, 32, 3))])
def test_known_sets_by_the_old_interface(cache, monkeypatch, name, classes, shape):
    """The stand-ins are used; their number of rows is cut so that the test is quick."""
    entry = datasets.dataset_info(name.lower())
    monkeypatch.setattr("harness.datasets.data_source.stand_in_source", small_stand_in)
    found = DataSet(name, train_batch_size=7, normalize=255.0, valid_pct=0.25)
    assert found.training_data.shape == (75, *shape) and found.training_data.max() <= 1
    assert found.training_labels.shape == (75, classes) == (75, entry.classes)
    assert found.validation_data.shape == (25, *shape)
    assert len(found.testing_data) == len(found.testing_labels) > 0
    taken = np.concatenate([found.next_train_batch()[0] for _ in range(11)])
    np.testing.assert_array_equal(taken, np.concatenate([found.training_data, found.training_data[:2]]))


def small_stand_in(entry, samples, reason):
    return datasets.DataSource(
        name=entry.name, kind="synthetic", data_id=f"small-{entry.name}", sha256="0" * 64, rows=100, note="t"
    )


def test_imagenet_images_are_decoded_by_the_rank_that_has_them(tmp_path, cache):
    """Class folders of JPEGs whose grey value says which it is; every rank reads its own, over all each once."""
    from PIL import Image

    greys = {}
    for part, count in (("train", 7), ("val", 2)):
        for label, kind in enumerate(("n01", "n02", "n03")):
            place = tmp_path / "imagenet" / part / kind
            place.mkdir(parents=True)
            for number in range(count):
                grey = 10 * (label * count + number) + 5
                Image.new("RGB", (40, 30), (grey, grey, grey)).save(place / f"{part}_{kind}_{number}.JPEG")
                greys[part, grey] = label
    found = read_all(3, name="imagenet", data_dir=tmp_path, normalize=255.0, image_size=32)
    for part, name in ((TRAIN, "train"), (TEST, "val")):
        rows = np.concatenate([parts[part].data for parts in found])
        labels = np.concatenate([parts[part].labels for parts in found])
        assert rows.shape[1:] == (32, 32, 3) and labels.shape[1] == 3 and rows.dtype == np.float32
        seen = {round(255 * float(row.mean())): int(label.argmax()) for row, label in zip(rows, labels, strict=True)}
        assert seen == {grey: label for (own, grey), label in greys.items() if own == name}
    assert {len(parts[TRAIN].data) for parts in found} == {7}
    with refuses("is for IMAGENET: leave", "32"):
        DataSet("MNIST", image_size=32)


def test_images_that_do_not_fit_into_memory_are_refused(monkeypatch, tmp_path, cache):
    monkeypatch.setattr("harness.readers.row_sources.memory_limit", lambda: 2**30)
    images = ImageRows(np.array([b"f"]), np.zeros((10_000, 3), np.int64), np.zeros(10_000, np.int32), 224, 10)
    with refuses("pixels a side take", "10,000", "224", "5.6"):
        images.read([range(10_000)])


def test_mnist_itself_over_three_ranks(shared_data, cache):
    found = read_all(3, name="mnist", data_dir=shared_data, normalize=255.0)
    counts = np.concatenate([parts[TRAIN].labels for parts in found]).sum(axis=0)
    validation = np.concatenate([parts[VALIDATION].labels for parts in found]).sum(axis=0)
    assert [len(parts[TRAIN].data) for parts in found] == [16666, 16667, 16667]
    assert list(counts + validation) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert sum(len(parts[TEST].data) for parts in found) == 10_000
    assert np.mean([parts[TRAIN].data.mean() for parts in found]) == pytest.approx(0.1307, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (
            {"data_name": "MNSIT"},
            ("pnetcdf", "mnsit", "mnist"),
        ),
        ({"data_name": "CSV"}, ("has no train_file: give",)),
        (
            {"data_name": "CSV", "train_file": "absent.csv"},
            ("there: check the path", "absent.csv"),
        ),
        (
            {"data_name": "MNIST", "normalize": 0},
            ("is not a divisor", "0"),
        ),
        (
            {"data_name": "MNIST", "valid_pct": 0.5, "test_pct": 0.5},
            ("leave no training rows",),
        ),
        (
            {"data_name": "MNIST", "onehot": True},
            ("argument of DataSet", "onehot", "one_hot"),
        ),
    ],
)
def test_wrong_arguments_are_told_in_one_sentence(arguments, refusal):
    with refuses(*refusal):
        DataSet(**arguments)


def test_files_that_do_not_fit_are_told(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((3, 2)), y=np.zeros(4))
    with refuses("give as many rows"):
        DataSet("npz", train_file=tmp_path / "data.npz")
    (tmp_path / "bad.nc").write_bytes(b"CDF\x01 cut")
    with refuses("is not a readable"):
        DataSet("NetCDF", train_file=tmp_path / "bad.nc")
    x, y = numbered(3)
    np.savez(tmp_path / "few.npz", x=x, y=y)
    with refuses("ranks: use fewer ranks", "3", "4"):
        read_all(4, name="npz", train_file=tmp_path / "few.npz")
    np.savez(tmp_path / "real.npz", x=x, y=[0.5, 1, 2])
    with refuses("are not whole numbers"):
        DataSet("npz", train_file=tmp_path / "real.npz")
    assert DataSet("npz", train_file=tmp_path / "real.npz", one_hot=False).training_labels.tolist() == [0.5, 1, 2]


def test_alone_without_a_launcher_or_when_switched_off():
    assert find_peers({}).size == 1
    assert find_peers({"OMPI_COMM_WORLD_SIZE": "2", "TF_MPI_ENABLE": "0"}).size == 1


def test_a_first_row_with_an_empty_cell_is_no_header(tmp_path):
    (tmp_path / "data.csv").write_text("1,,3\n0,1,2\n")
    source = CsvRows(tmp_path / "data.csv", None, Peers())
    assert source.blocks == (2,)
    with refuses("missing, NaN or infinite", "1", "2"):
        source.read([range(0, 2)])


def test_csv_names_that_are_numbers_are_told_by_a_setting(tmp_path):
    (tmp_path / "data.csv").write_text("0,1,2\n" + "".join(f"{row % 2},{row}.5,0.{row + 1}\n" for row in range(20)))
    with refuses("--header"):
        CsvRows(tmp_path / "data.csv", None, Peers())
    source = CsvRows(tmp_path / "data.csv", None, Peers(), CsvSettings(header="yes"))
    assert source.blocks == (20,)
    x, y = source.read([range(20)])
    assert x[:, 0].tolist() == [row + 0.5 for row in range(20)] and y.tolist() == [row % 2 for row in range(20)]


def test_csv_index_is_no_label(tmp_path):
    (tmp_path / "data.csv").write_text(",a,b\n" + "".join(f"{row},{row}.5,{row % 3}\n" for row in range(20)))
    with refuses("has a nameless first"):
        CsvRows(tmp_path / "data.csv", None, Peers())
    assert CsvRows(tmp_path / "data.csv", "b", Peers()).read([range(20)])[1].tolist() == [row % 3 for row in range(20)]


def test_a_refusal_in_a_script_names_the_argument(tmp_path):
    (tmp_path / "data.csv").write_text("label,when\n0,10,5\n1,11,7\n")
    with refuses("data.csv", "separator="):
        DataSet("CSV", train_file=tmp_path / "data.csv")


@pytest.mark.parametrize(
    ("text", "arguments", "part"),
    [
        ("label;a;b\n0;1,5;2\n1;2,5;3\n", {}, ""),
        ("label\ta\tb\n0\t1.5\t2\n1\t2.5\t3\n", {}, ""),
        ("0;1,5;2\n1;2,5;3\n", {"header": "no", "separator": "semicolon", "decimal": "comma"}, ""),
        ("label,a,b\r0,1.5,2\r1,2.5,3\r", {}, "no training rows"),
        ("0,1.5,2\r1,2.5,3\n", {}, "newlines"),
        ("label a b\n0 1.5 2\n1 2.5 3\n", {}, "blanks"),
        ("label,a,b\n0,1700000001,2\n1,1700000002,3\n", {}, "float32"),
        ("label,a,b\n0,1.5,2\nlabel,a,b\n1,2.5,3\n", {}, "line 3 is the header again"),
    ],
)
def test_csv_of_scripts_is_read_as_own_tables_are(tmp_path, text, arguments, part):
    (tmp_path / "data.csv").write_bytes(text.encode())
    request = DataSetRequest(name="csv", train_file=tmp_path / "data.csv", **arguments)
    if part:
        with refuses(part):
            load_rank_rows(request, Peers())
        return
    rows = load_rank_rows(request, Peers())[TRAIN]
    assert rows.data.tolist() == [[1.5, 2], [2.5, 3]] and rows.labels.argmax(axis=1).tolist() == [0, 1]
