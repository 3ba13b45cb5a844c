"""Whether data is what was published: hashes, rows, classes, values, mean and deviation."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.datasets.data_source import DataSource, file_sha256
from harness.datasets.dataset import Array, Dataset
from harness.datasets.downloads import published_or_pinned
from harness.datasets.known import dataset_info
from harness.datasets.npy_files import shift_and_factor
from harness.datasets.prepare import Prepared


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCheck:
    """One fact: what is measured here, what is published, and whether they agree (None: nothing to compare with)."""

    what: str
    measured: str
    expected: str = ""
    agrees: bool | None = None


def verify_data(source: DataSource, prepared: Prepared) -> list[FileCheck]:
    """Return the checks of rows, classes, value range, and mean and deviation of real data, in this order.

    Rows that were held out of a training part count as training rows again here.
    """
    facts = dataset_info(source.name)
    record = prepared.record
    train_y = prepared.train_y
    test_y = prepared.test_y
    if record.held_out:
        train_y = np.concatenate([train_y, test_y])
        test_y = test_y[:0]
    checks = [*_check_hashes(source, facts), *_check_rows(facts, record.held_out, len(train_y), len(test_y))]
    for part, labels, expected in (("train", train_y, facts.train_counts), ("test", test_y, facts.test_counts)):
        if len(labels):
            counts = tuple(np.bincount(labels, minlength=record.classes).tolist())
            checks.append(_compare(f"{part} rows per class", counts, expected))
    checks.append(_check_range(facts, prepared.chunks(record.train_rows + record.test_rows)))
    if facts.channel_mean:  # scaled to 0..1, of all rows that the original trains on
        shift, factor = shift_and_factor(prepared.chunks(len(train_y)), facts.features, facts.standardise)
        checks.append(_compare("mean per channel", _rounded(shift / 255), facts.channel_mean))
        checks.append(_compare("deviation per channel", _rounded(1 / factor / 255), facts.channel_std))
    return checks


def _check_range(facts: Dataset, chunks: Iterator[Array]) -> FileCheck:
    extremes = [(float(chunk.min()), float(chunk.max())) for chunk in chunks]
    low = min(low for low, _ in extremes)
    high = max(high for _, high in extremes)
    bounds = facts.value_range
    return FileCheck(
        what="values",
        measured=f"{low:g} to {high:g}",
        expected="" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}",
        agrees=None if bounds is None else bool(bounds[0] <= low and high <= bounds[1]),
    )


def _rounded(values: Array) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values.tolist())


def _check_hashes(source: DataSource, facts: Dataset) -> list[FileCheck]:
    downloads = {file.name: file for file in facts.downloads}
    checks = []
    for path in source.files:
        file = downloads.get(path.name)
        published = published_or_pinned(file, path) if file else None
        sha256 = file_sha256(path)
        expected = ""
        if published is not None:
            expected = "as published" if sha256 == published else f"published {published}: packed differently"
        # The same content packed differently has a different hash: that is no fault, the content is checked below.
        agrees = sha256 == published or None
        checks.append(FileCheck(what=f"sha256 {path.name}", measured=sha256, expected=expected, agrees=agrees))
    return checks


def _check_rows(facts: Dataset, held_out: bool, train: int, test: int) -> list[FileCheck]:
    if not facts.train_rows:
        return [FileCheck(what="rows", measured=f"{train + test:,}")]
    if not facts.separate_test:
        rows = train + test
        published_rows = facts.train_rows + facts.test_rows
        expected = f"{published_rows:,}"
        agrees: bool | None = rows == published_rows
        if rows < published_rows:
            expected += ": this is a piece"
            agrees = None
        return [FileCheck(what="rows", measured=f"{rows:,}", expected=expected, agrees=agrees)]
    checks = [_compare("train rows", (train,), (facts.train_rows,))]
    if held_out:
        return [*checks, FileCheck(what="test rows", measured="no test files", expected=f"{facts.test_rows:,}")]
    return [*checks, _compare("test rows", (test,), (facts.test_rows,))]


def _compare(what: str, measured: tuple[float, ...], expected: tuple[float, ...]) -> FileCheck:
    agrees = measured == expected if expected else None
    return FileCheck(what=what, measured=_listed(measured), expected=_listed(expected), agrees=agrees)


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:,}" for value in values)
