"""Readers of the original formats: what they return, and the one sentence for each kind of damage."""

import bz2
import gzip
import io
import pickle
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import UserError
from harness.datasets.known.papers import ADULT as adult
from harness.datasets.known.papers import CIFAR10 as cifar10
from harness.datasets.known.papers import HIGGS as higgs
from harness.datasets.known.papers import MNIST as mnist
from harness.datasets.original_files import LibsvmFiles, read_idx
from tests.labs import sentences
from tests.labs.sentences import says

BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def idx(values: np.ndarray) -> bytes:
    """Return an idx file of unsigned bytes."""
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return header + values.astype(np.uint8).tobytes()


def refuses(call, *parts: str) -> None:
    """Check that `call` raises one UserError sentence that has all `parts`."""
    with pytest.raises(UserError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@given(shape=st.lists(st.integers(0, 7), min_size=1, max_size=3), seed=st.integers(0, 99), packed=st.booleans())
def test_idx_round_trip(tmp_path_factory, shape, seed, packed):
    values = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    path = tmp_path_factory.mktemp("idx") / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    np.testing.assert_array_equal(read_idx(path, dims=len(shape)), values)


@given(cut=st.integers(0, 11 + 2 * 3 * 4))
def test_idx_cut_anywhere_is_refused(tmp_path_factory, cut):
    content = idx(np.ones((2, 3, 4)))
    for path, data in (("a", content[:cut]), ("b.gz", gzip.compress(content)[: cut % 20])):
        file = tmp_path_factory.mktemp("idx") / path
        file.write_bytes(data)
        refuses(lambda file=file: read_idx(file, dims=3), str(file))


def test_idx_says_what_is_wrong(tmp_path):
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(idx(np.zeros((2, 28, 28)))[:-1])
    refuses(lambda: read_idx(path, dims=3), "is cut", "1,584", "1,583")
    path.write_bytes(idx(np.zeros((2, 28, 28))) + b"x")
    refuses(lambda: read_idx(path, dims=3), "too long")
    path.write_bytes(idx(np.zeros(7 * 4)))
    refuses(lambda: read_idx(path, dims=3), "0x00000801", "0x00000803")


def write_mnist(folder: Path, rows: int = 20, part: str = "train") -> tuple[Path, Path]:
    rng = np.random.default_rng(rows)
    images, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels.idx1-ubyte.gz"
    images.write_bytes(idx(rng.integers(0, 256, (rows, 28, 28))))
    labels.write_bytes(gzip.compress(idx(rng.integers(0, 10, rows))))
    return images, labels


def test_mnist_finds_every_spelling(tmp_path):
    (tmp_path / "mnist").mkdir()
    train = write_mnist(tmp_path / "mnist")
    found = mnist.find(tmp_path)
    assert (found.train, found.test, found.missing) == (train, (), ())
    test = write_mnist(tmp_path, part="t10k")
    assert mnist.find(tmp_path).test == test
    train[1].unlink()
    assert mnist.find(tmp_path).missing == ("train-labels-idx1-ubyte.gz",)


def test_mnist_refuses_counts_and_labels(tmp_path):
    images, labels = write_mnist(tmp_path)
    ((x, y),) = mnist.read((images, labels), "train")
    assert x.shape == (20, 28, 28, 1) and x.dtype == np.uint8 and len(y) == 20
    labels.write_bytes(gzip.compress(idx(np.zeros(19))))
    refuses(lambda: list(mnist.read((images, labels), "train")), "20 images", "19 labels")
    labels.write_bytes(gzip.compress(idx(np.array([0] * 12 + [10] * 8))))
    refuses(lambda: list(mnist.read((images, labels), "train")), "row 13", "label 10", "0 to 9")
    images.write_bytes(idx(np.zeros((20, 28, 27))))
    refuses(lambda: list(mnist.read((images, labels), "train")), "(28, 27)")


def cifar_rows(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, 3072)).astype(np.uint8), rng.integers(0, 10, rows).astype(np.uint8)


def cifar_binary(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return np.column_stack([labels, pixels]).tobytes()


def cifar_python(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=2)


def write_cifar(folder: Path, form: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Write small batches as ``bin``, ``py``, ``binary`` or ``python`` (the archives); return them."""
    contents = [cifar_rows(5, seed) for seed in range(6)]
    pack, suffix, inner = (
        (cifar_binary, ".bin", "cifar-10-batches-bin")
        if form.startswith("bin")
        else (cifar_python, "", "cifar-10-batches-py")
    )
    files = {
        f"{inner}/{name}{suffix}": pack(*content)
        for name, content in zip([*BATCHES, "test_batch"], contents, strict=True)
    }
    if form in ("bin", "py"):
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        return contents
    with tarfile.open(folder / f"cifar-10-{form}.tar.gz", "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return contents


@pytest.mark.parametrize("form", ["bin", "py", "binary", "python"])
def test_cifar10_reads_the_same_from_all_four_forms(tmp_path, form):
    contents = write_cifar(tmp_path, form)
    found = cifar10.find(tmp_path)
    blocks = [*cifar10.read(found.train, "train"), *cifar10.read(found.test, "test")]
    assert len(blocks) == 6
    for (x, y), (pixels, labels) in zip(blocks, contents, strict=True):
        np.testing.assert_array_equal(y, labels)
        np.testing.assert_array_equal(x[:, 2, 3, 1], pixels[:, 1024 + 2 * 32 + 3])  # green, third row, fourth column


def test_cifar10_refuses_damage(tmp_path):
    write_cifar(tmp_path, "bin")
    batch = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    whole = batch.read_bytes()
    batch.write_bytes(whole[:-1])
    refuses(lambda: list(cifar10.read(cifar10.find(tmp_path).train, "train")), "data_batch_3.bin", "is cut")
    batch.write_bytes(whole[: 2 * 3073] + b"\x0a" + whole[2 * 3073 + 1 :])
    refuses(lambda: list(cifar10.read(cifar10.find(tmp_path).train, "train")), "row 3", "label 10")
    batch.unlink()
    assert cifar10.find(tmp_path).missing == ("data_batch_3.bin",)


def test_cifar10_refuses_a_cut_archive_and_a_pickle_that_runs_code(tmp_path):
    write_cifar(tmp_path, "binary")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(archive.read_bytes()[:20_000])
    refuses(lambda: list(cifar10.read((archive,), "train")), "archive", "fetch it again")
    write_cifar(tmp_path, "py")
    evil = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    evil.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    refuses(lambda: list(cifar10.read((evil,), "train")), "data_batch_1", "os.system")


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([1, 2, 3]), st.dictionaries(st.integers(1, 6), st.floats(-9, 9, width=32))),
        min_size=1,
        max_size=9,
    ),
    suffix=st.sampled_from(["", ".gz", ".bz2"]),
)
def test_libsvm_round_trip(tmp_path_factory, rows, suffix):
    lines = [f"{label} " + " ".join(f"{i}:{v!r}" for i, v in sorted(values.items())) for label, values in rows]
    data = ("\n".join(lines) + "\n").encode()
    path = tmp_path_factory.mktemp("svm") / f"a{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix](data))
    x, y = LibsvmFiles(features=6, labels=(1, 2, 3)).read(path)
    assert x.shape == (len(rows), 6) and x.dtype == np.float32
    assert list(y) == [label - 1 for label, _ in rows]
    for row, (_, values) in zip(x, rows, strict=True):
        np.testing.assert_array_equal(row, [np.float32(values.get(i, 0)) for i in range(1, 7)])


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("1 0:1", ("index 0", "1 to 5")),
        ("1 6:1", ("index 6", "1 to 5")),
        ("1 3:1 2:1", ("index 2 after 3", "ascend")),
        ("1 3:1 3:1", ("index 3 after 3", "ascend")),
        ("1 2:abc", ("'abc'", "index 2")),
        ("1 2:", ("''", "index 2")),
        ("1 2:nan", ("'nan'", "finite")),
        ("1 2:1 4", ("'4'", "index:value")),
        ("1 2:1 -4:1", ("'-4:1'", "index:value")),
        ("7 2:1", ("label '7'", "1, 2, 3")),
        ("x 2:1", ("label 'x'", "1, 2, 3")),
        ("1.5 2:1", ("label '1.5'",)),
    ],
)
def test_libsvm_names_the_line(tmp_path, line, parts):
    path = tmp_path / "acoustic"
    path.write_text(f"1 1:0.5 2:1\n# a comment\n\n2 5:1\n{line}\n3 1:2\n")
    refuses(lambda: LibsvmFiles(features=5, labels=(1, 2, 3)).read(path), str(path), "line 5 ", *parts)


def test_libsvm_refuses_cut_files(tmp_path):
    data = b"".join(b"%d 1:%d.5\n" % (1 + i % 3, i) for i in range(3000))
    for name, packed in (("a.bz2", bz2.compress(data)), ("a.gz", gzip.compress(data))):
        path = tmp_path / name
        path.write_bytes(packed[: len(packed) // 2])
        refuses(lambda path=path: LibsvmFiles(features=5, labels=(1, 2, 3)).read(path), str(path), "cut")
    path = tmp_path / "empty"
    path.write_bytes(b"")
    refuses(lambda: LibsvmFiles(features=5, labels=(1, 2, 3)).read(path), "empty")


def test_adult_keeps_its_width_and_refuses_other_values(tmp_path):
    path = tmp_path / "a9a.t"
    path.write_text("-1 3:1 122:1\n+1 1:1\n")
    ((x, y),) = adult.read((path,), "test")
    assert x.shape == (2, 123) and x.dtype == np.uint8 and list(y) == [0, 1]
    path.write_text("-1 3:1\n+1 1:0.5\n")
    refuses(lambda: list(adult.read((path,), "test")), "row 2", "0.5", "index 1")


def higgs_lines(rows: int) -> list[str]:
    rng = np.random.default_rng(rows)
    return [",".join(f"{v:.18e}" for v in [row % 2, *rng.normal(size=28)]) for row in range(rows)]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_higgs_reads_csv(tmp_path, suffix):
    lines = higgs_lines(100)
    data = "\n".join(lines).encode()
    path = tmp_path / f"HIGGS.csv{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    assert higgs.find(tmp_path).train == (path,)
    blocks = list(higgs.read((path,), "train"))
    x, y = np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks])
    np.testing.assert_array_equal(y, np.arange(100) % 2)
    np.testing.assert_array_equal(x[99], np.array(lines[99].split(",")[1:], np.float32))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda lines: ["label," + ",".join(f"f{i}" for i in range(28)), *lines], ("line 1", "'label'")),
        (lambda lines: [*lines[:40], lines[40].rpartition(",")[0], *lines[41:]], ("line 41", "expected 29", "got 28")),
        (lambda lines: [*lines[:40], lines[40] + ",1", *lines[41:]], ("line 41", "expected 29", "got 30")),
        (lambda lines: [*lines[:40], lines[40].rpartition(",")[0] + ",nan", *lines[41:]], ("line 41", "column 29")),
        (lambda lines: [*lines[:40], lines[40].rpartition(",")[0] + ",", *lines[41:]], ("line 41", "column 29")),
        (lambda lines: [*lines[:40], lines[40].rpartition(",")[0] + ",inf", *lines[41:]], ("line 41", "column 29")),
        (lambda lines: [*lines[:40], "2" + lines[40][1:], *lines[41:]], ("line 41", "label 2", "0 to 1")),
        (lambda lines: [*lines[:40], lines[40].replace("e", "z"), *lines[41:]], ("line 41", "invalid value")),
        (lambda lines: [], ("empty",)),
    ],
)
def test_higgs_names_the_line(tmp_path, change, parts):
    path = tmp_path / "HIGGS_piece.csv"
    path.write_text("\n".join(change(higgs_lines(60))))
    refuses(lambda: list(higgs.read((path,), "train")), str(path), *parts)


def test_higgs_refuses_a_cut_gzip(tmp_path):
    path = tmp_path / "HIGGS.csv.gz"
    packed = gzip.compress("\n".join(higgs_lines(2000)).encode())
    path.write_bytes(packed[: len(packed) // 2])
    refuses(lambda: list(higgs.read((path,), "train")), str(path), "cut")


def test_higgs_takes_the_largest_piece(tmp_path):
    for name, size in (("HIGGS_a.csv", 10), ("HIGGS_b.csv.gz", 30), ("HIGGS_c.csv", 20)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert [path.name for path in higgs.find(tmp_path).train] == ["HIGGS_b.csv.gz"]
    (tmp_path / "HIGGS.csv").write_bytes(b"x")
    assert [path.name for path in higgs.find(tmp_path).train] == ["HIGGS.csv"]


def test_no_message_has_two_sentences_glued(tmp_path):
    path = tmp_path / "HIGGS.csv"
    path.write_text("\n".join(higgs_lines(5)).replace("e+00", "q"))
    with pytest.raises(UserError) as caught:
        list(higgs.read((path,), "train"))
    sentence = says(caught.value, path.name, "line 1", "q")
    assert len(re.findall(r"line \d+: ", sentence)) == 1


class _Huge:
    def __reduce__(self):
        return np.ndarray, ((9 * 2**40,), np.dtype("u1"))


def test_cifar_refuses_a_pickle_that_asks_for_more_than_the_memory(tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": _Huge(), b"labels": [0]}, protocol=2))
    with sentences.refuses("is not a readable"):
        list(cifar10.read((path,), "train"))
