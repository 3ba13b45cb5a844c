"""From a workload to memory maps: what is chosen, what is said, and that the cache is written once and whole."""

import importlib
import json
import logging
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import datasets
from harness.base.errors import UserError
from harness.base.files import publish_folder
from harness.base.removal import MARK
from harness.datasets.npy_files import NpyWriter, read_chunks, shift_and_factor
from harness.schema.workload import Workload
from tests.labs.sentences import refuses, says


def workload(dataset: str, **fields) -> Workload:
    return Workload(dataset=dataset, model="dnn", batch_per_rank=4, **fields)


def a9a(folder: Path, rows: int, name: str = "a9a") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{'+1' if row % 3 == 0 else '-1'} {1 + row % 100}:1 123:1" for row in range(rows)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def test_import_is_cheap():
    code = "import sys, harness.datasets; print([m for m in sys.modules if m.split('.')[0] in sys.argv[1:]])"
    heavy = ["pandas", "pyarrow", "sklearn", "scipy", "pooch", "requests", "h5py", "tensorflow", "keras", "mpi4py"]
    out = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_names_and_info():
    assert datasets.dataset_names() == ("acoustic", "adult", "cifar10", "cifar100", "higgs", "imagenet", "mnist")
    for name in datasets.dataset_names():
        facts = datasets.dataset_info(name)
        assert facts.name == name and facts.dtype in ("uint8", "float32") and facts.classes == len(facts.shares)
        assert sum(facts.shares) == pytest.approx(1)
        assert bool(facts.downloads) is (name != "imagenet")
        assert not facts.train_counts or sum(facts.train_counts) == facts.train_rows
        assert not facts.test_counts or sum(facts.test_counts) == facts.test_rows
    assert datasets.dataset_info("file").features == ()


@pytest.mark.parametrize(
    ("name", "file", "refusal"),
    [
        (None, None, ("no data set given",)),
        ("mnist", "a.csv", ("are given: give one",)),
        (
            "higs",
            None,
            ("did you mean", "higgs"),
        ),
        (None, "gone.csv", ("there: check the path",)),
        (None, "a.txt", ("is of an unknown",)),
        (
            "file",
            None,
            ("--dataset file names no file", "--data"),
        ),
    ],
)
def test_choose_refuses(name, file, refusal):
    with refuses(*refusal):
        datasets.choose_dataset(name, file)


def test_locate_takes_real_data_where_it_is(cache, tmp_path):
    path = a9a(tmp_path / "data" / "adult", 30)
    source = datasets.locate(workload("adult"), tmp_path / "data")
    assert (source.kind, source.files) == ("real", (path,))
    says(source.note, "training rows is held", "1 in 10")
    again = datasets.locate(workload("adult", samples=5), tmp_path / "data")
    assert again.data_id == source.data_id
    a9a(tmp_path / "data" / "adult", 31)
    assert datasets.locate(workload("adult"), tmp_path / "data").data_id != source.data_id


def test_locate_says_that_a_stand_in_is_used(cache, tmp_path):
    source = datasets.locate(workload("higgs"), tmp_path)
    assert (source.kind, source.rows, source.data_id) == ("synthetic", 1_000_000, "synthetic-higgs-v1")
    says(source.note, "files in", "HIGGS", tmp_path, "HIGGS.csv.gz")
    says(source.note, "1,000,000 synthetic samples")
    sized = datasets.locate(workload("higgs", samples=500, data="synthetic"), None)
    assert (sized.rows, sized.data_id) == (500, source.data_id)


def test_locate_refuses(cache, tmp_path, monkeypatch):
    with refuses("them there or run") as caught:
        datasets.locate(workload("mnist", data="real"), None)
    assert str(cache / "data") in str(caught.value)
    with refuses("not there: check --data-dir"):
        datasets.locate(workload("mnist"), tmp_path / "nowhere")
    with refuses("synthetic needs --dataset"):
        datasets.locate(workload("file", data_file="a.csv", data="synthetic"), None)
    monkeypatch.setenv("HARNESS_DATA_DIR", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="elsewhere"):
        datasets.locate(workload("mnist"), None)


def test_hashes_are_remembered(cache, tmp_path, monkeypatch):
    module = importlib.import_module("harness.datasets.data_source")
    path = a9a(tmp_path, 10)
    first = module.file_sha256(path)
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("hashed twice"))
    assert module.file_sha256(path) == first
    os.utime(path, ns=(1, 1))
    monkeypatch.setattr("hashlib.file_digest", lambda *_: SimpleNamespace(hexdigest=lambda: "new"))
    assert module.file_sha256(path) == "new"


def test_prepared_cache_is_used_without_writing(cache, tmp_path, monkeypatch):
    a9a(tmp_path, 40)
    first = datasets.prepare(datasets.locate(workload("adult"), tmp_path))
    for module in ("base.files", "datasets.data_source"):
        loaded = importlib.import_module(f"harness.{module}")
        monkeypatch.setattr(loaded, "hold_lock_file", lambda path: pytest.fail(f"locks {path}"))
    assert datasets.prepare(datasets.locate(workload("adult"), tmp_path)).folder == first.folder


def test_prepare_holds_out_and_says_so(cache, tmp_path):
    a9a(tmp_path, 40)
    prepared = datasets.prepare(datasets.locate(workload("adult"), tmp_path))
    record = prepared.record
    assert (record.train_rows, record.test_rows, record.held_out) == (36, 4, True)
    says(record.note, "test files: the last", "Adult", 4)
    a9a(tmp_path, 7, "a9a.t")
    whole = datasets.prepare(datasets.locate(workload("adult"), tmp_path))
    assert (whole.record.train_rows, whole.record.test_rows, whole.record.held_out) == (40, 7, False)
    assert whole.record.note == ""
    np.testing.assert_array_equal(whole.train_x[36:], prepared.test_x)
    assert isinstance(whole.train_x, np.memmap) and not whole.train_x.flags.writeable
    assert whole.train_y.dtype == np.int32 and whole.test_y.dtype == np.int32
    assert not whole.shift.any() and (whole.factor == 1).all()


@given(
    values=st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=2), min_size=1, max_size=40),
    cut=st.integers(1, 40),
)
def test_statistics_do_not_depend_on_blocks(values, cut):
    x = np.array(values, np.float32)
    shift, factor = shift_and_factor([part for part in (x[:cut], x[cut:]) if len(part)], (2,), "feature")
    np.testing.assert_allclose(shift, x.mean(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-4)
    deviation = x.std(axis=0, dtype=np.float64)
    for found, expected in zip(factor, deviation, strict=True):
        assert found == 1 if expected == 0 else found * expected == pytest.approx(1, rel=1e-3) or expected < 1e-3


def test_statistics_per_channel_and_constant_features():
    x = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3)).astype(np.uint8)
    x[..., 2] = 7
    shift, factor = shift_and_factor([x], (4, 4, 3), "channel")
    assert shift.shape == factor.shape == (3,)
    scaled = (x.astype(np.float32) - shift) * factor
    np.testing.assert_allclose(scaled.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=(0, 1, 2)), [1, 1, 0], atol=1e-5)
    assert factor[2] == 1


@given(blocks=st.lists(st.integers(0, 5), max_size=6), wide=st.booleans())
def test_npy_writer_makes_what_numpy_loads(tmp_path_factory, blocks, wide):
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    features = (2, 3) if wide else ()
    rows = np.arange(sum(blocks) * (6 if wide else 1)).reshape(-1, *features)
    with NpyWriter(path, "float32", features) as writer:
        start = 0
        for size in blocks:
            writer.append(rows[start : start + size])
            start += size
    np.testing.assert_array_equal(np.load(path), rows)
    parts = list(read_chunks(path, len(rows)))
    if parts:
        np.testing.assert_array_equal(np.concatenate(parts), rows)


def run_prepare(cache: str, log: str, begin, broken_lock: bool) -> None:
    """Prepare a stand-in in a process of its own; write one line to `log` for every time it is really written."""
    os.environ["HARNESS_CACHE_DIR"] = cache
    module = importlib.import_module("harness.datasets.prepare")
    logger = logging.getLogger(module.__name__)
    logger.setLevel(logging.INFO)  # one line for every time it is written
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("w", validate=False))
    handler.terminator = ""
    logger.addHandler(handler)
    if broken_lock:
        fcntl = importlib.import_module("harness.base.files").fcntl
        fcntl.flock = lambda *_: (_ for _ in ()).throw(OSError(37, "No locks available"))
    begin.wait()
    prepared = module.prepare(datasets.locate(workload("higgs", data="synthetic", samples=200_000), None))
    digest = [float(part.sum(dtype=np.float64)) for part in (prepared.train_x, prepared.test_x, prepared.train_y)]
    with Path(log).open("a") as file:
        file.write(f"{digest}")


@pytest.mark.parametrize("broken_lock", [False, True])
def test_two_processes_write_once_and_read_the_same(cache, tmp_path, broken_lock):
    spawn = multiprocessing.get_context("spawn")
    begin = spawn.Barrier(2)
    logs = [tmp_path / f"log{number}" for number in range(2)]
    ranks = [
        spawn.Process(target=run_prepare, args=(str(cache.parent), str(log), begin, broken_lock), daemon=True)
        for log in logs
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    texts = [log.read_text() for log in logs]
    assert len({text.lstrip("w") for text in texts}) == 1
    writes = sum(text.count("w") for text in texts)
    assert writes in ((1, 2) if broken_lock else (1,))
    folder = cache / "prepared" / "2"
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["synthetic-higgs-v1-200000"]


def test_publish_leaves_the_first_alone_and_clears_what_the_dead_left(tmp_path):
    target = tmp_path / "data"
    with publish_folder(target) as staging:
        (staging / "a").write_text("first")
    with publish_folder(target) as staging:
        (staging / "a").write_text("second")
    assert (target / "a").read_text() == "first"
    with pytest.raises(ZeroDivisionError), publish_folder(tmp_path / "other") as staging:
        left = staging.with_name(f"{staging.name[:-1]}x")
        left.mkdir()
        mark = (staging / MARK).read_text().replace(str(os.getpid()), "4194305")  # above Linux's largest number
        (left / MARK).write_text(mark)
        raise ZeroDivisionError
    assert left.exists()
    with publish_folder(tmp_path / "other"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "other"]


def test_bad_content_leaves_nothing_behind(cache, tmp_path):
    path = a9a(tmp_path, 9)
    path.write_text(path.read_text() + "+1 5:1 4:1\n")
    for _ in range(2):
        with refuses("indices must ascend", "10", "4", "5"):
            datasets.prepare(datasets.locate(workload("adult"), tmp_path))
    assert [path.suffix for path in (cache / "prepared" / "2").iterdir()] == [".lock"]


def test_full_disk_is_one_sentence(cache):
    script = (
        "import resource, sys; from harness import datasets; from harness.schema.workload import Workload\n"
        "from harness.base.errors import UserError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "w = Workload(dataset='higgs', model='dnn', batch_per_rank=1, data='synthetic', samples=50_000)\n"
        "try: datasets.prepare(datasets.locate(w, None))\n"
        "except UserError as error: print(error); sys.exit(2)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    says(done.stdout, "cannot be written", "large")
    assert done.stdout.count("\n") == 1
    assert [path.suffix for path in (cache / "prepared" / "2").iterdir()] == [".lock"]


def test_unwritable_cache_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("HARNESS_CACHE_DIR", str(place))
        with refuses("cannot be written"):
            datasets.prepare(datasets.locate(workload("higgs", data="synthetic"), None))


def test_damaged_cache_is_one_sentence(cache):
    source = datasets.locate(workload("acoustic", data="synthetic", samples=100), None)
    folder = datasets.prepare(source).folder
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:5000])
    with refuses("is damaged"):
        datasets.prepare(source)


MEASURE = """
import json, sys, time
from pathlib import Path
from harness import datasets
from harness.schema.workload import Workload
import pyarrow.csv
source = datasets.locate(Workload(dataset="higgs", model="dnn", batch_per_rank=1), Path(sys.argv[1]))
begin = time.process_time()
record = datasets.prepare(source).record
seconds = time.process_time() - begin
# ru_maxrss would be at least that of the process that started this one.
(peak,) = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(json.dumps([record.train_rows, record.test_rows, seconds, peak]))
"""


def test_higgs_text_is_streamed_fast_and_in_little_memory(cache, tmp_path):
    """Issue 2: 100 MB/s of text on one core (in CPU seconds: other work may share it), below 1.5 GB."""
    rng = np.random.default_rng(0)
    piece = "\n".join(",".join(f"{v:.18e}" for v in [row % 2, *rng.normal(size=28)]) for row in range(2_000)) + "\n"
    path = tmp_path / "HIGGS.csv"
    with path.open("w") as file:
        for _ in range(60):
            file.write(piece)
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    train_rows, test_rows, seconds, peak_kib = json.loads(out)
    assert (train_rows, test_rows) == (96_000, 24_000)
    assert path.stat().st_size / 1e6 / seconds >= 100
    assert peak_kib * 1024 < 1.5e9
