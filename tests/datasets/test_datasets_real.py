"""The original files, where they are: the published facts."""

from pathlib import Path

import numpy as np
import pytest

from harness import datasets
from harness.datasets.data_checks import verify_data
from harness.schema.workload import Workload
from tests.labs.sentences import says


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory):
    """Prepare every set once for the whole file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def real(name: str, folder: Path) -> tuple[datasets.DataSource, datasets.Prepared]:
    source = datasets.locate(Workload(dataset=name, model="dnn", batch_per_rank=1, data="real"), folder)
    return source, datasets.prepare(source)


@pytest.mark.parametrize(
    ("name", "agreeing"),
    [
        ("mnist", {"train rows", "test rows", "train rows per class", "test rows per class", "values"}),
        ("adult", {"train rows", "test rows", "train rows per class", "test rows per class", "values"}),
        ("cifar10", {"train rows", "train rows per class", "values", "mean per channel", "deviation per channel"}),
    ],
)
@pytest.mark.slow  # reads whole data sets
def test_published_facts_hold(shared_data, name, agreeing):
    checks = {check.what: check for check in verify_data(*real(name, shared_data))}
    assert not [check for check in checks.values() if check.agrees is False]
    assert agreeing <= {what for what, check in checks.items() if check.agrees}


def test_mnist(shared_data):
    source, prepared = real("mnist", shared_data)
    assert source.note == "" and not prepared.record.held_out
    assert list(np.bincount(prepared.test_y)) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    scaled = (prepared.train_x[::7].astype(np.float32) - prepared.shift) * prepared.factor
    assert scaled.mean() == pytest.approx(0, abs=0.01) and scaled.std() == pytest.approx(1, abs=0.01)


def test_cifar10_holds_out_the_last_batch_end(shared_data):
    source, prepared = real("cifar10", shared_data)
    assert (prepared.record.train_rows, prepared.record.test_rows, prepared.record.held_out) == (45_000, 5_000, True)
    says(prepared.record.note, "the last 5,000")
    says(source.note, "held out")
    assert list(np.bincount(prepared.train_y[:10_000])) == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]


def test_higgs_piece(shared_data):
    source, prepared = real("higgs", shared_data)
    record = prepared.record
    assert (record.train_rows, record.test_rows, record.held_out) == (8_000, 2_000, True)
    says(record.note, "rows: its last", "HIGGS_first10000.csv", "10,000", "11,000,000", "2,000")
    labels = np.concatenate([prepared.train_y, prepared.test_y])
    assert list(np.bincount(labels)) == [4_705, 5_295]
    first = source.files[0].open().readline().split(",")
    np.testing.assert_array_equal(prepared.train_x[0], np.array(first[1:], np.float32))
    assert prepared.train_y[0] == float(first[0])
