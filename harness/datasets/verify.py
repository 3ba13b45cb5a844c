"""Check a prepared data set against what is published about it."""

from dataclasses import dataclass

import numpy as np

from harness.datasets.arrays import shift_and_factor
from harness.datasets.dataset import DatasetInfo
from harness.datasets.fetch import published_or_pinned
from harness.datasets.prepare import Prepared
from harness.datasets.registry import info
from harness.datasets.source import Source, file_sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One fact: what was found, what is published, and whether they agree (None: nothing to compare with)."""

    what: str
    found: str
    expected: str = ""
    agrees: bool | None = None


def verify(source: Source, prepared: Prepared) -> list[Check]:
    """Return the checks of rows, classes, value range, and mean and deviation of real data, in this order.

    Rows that were held out of a training part count as training rows again here.
    """
    facts = info(source.name)
    record = prepared.record
    train_y, test_y = prepared.train_y, prepared.test_y
    if record.held_out:
        train_y, test_y = np.concatenate([train_y, test_y]), test_y[:0]
    checks = [*_hashes(source, facts), *_rows(facts, record.held_out, len(train_y), len(test_y))]
    for part, labels, counts in (("train", train_y, facts.train_counts), ("test", test_y, facts.test_counts)):
        if len(labels):
            found = tuple(int(count) for count in np.bincount(labels, minlength=record.classes))
            checks.append(_compare(f"{part} rows per class", found, counts))
    low, high = _range(prepared)
    bounds = facts.value_range
    within = None if bounds is None else bool(bounds[0] <= low and high <= bounds[1])
    checks.append(Check(what="values", found=f"{low:g} to {high:g}", expected=_span(bounds), agrees=within))
    return checks + _channels(facts, prepared)


def _hashes(source: Source, facts: DatasetInfo) -> list[Check]:
    downloads = {file.name: file for file in facts.downloads}
    checks = []
    for path in source.files:
        file = downloads.get(path.name)
        known = published_or_pinned(file, path) if file else None
        found = file_sha256(path)
        expected = "" if known is None else "as published" if found == known else f"published {known}: another packing"
        # Another packing of the same content has another hash: no fault, the content is checked below.
        checks.append(Check(what=f"sha256 {path.name}", found=found, expected=expected, agrees=found == known or None))
    return checks


def _rows(facts: DatasetInfo, held_out: bool, train: int, test: int) -> list[Check]:
    if not facts.train_rows:
        return [Check(what="rows", found=f"{train + test:,}")]
    if not facts.separate_test:
        found, whole = train + test, facts.train_rows + facts.test_rows
        expected = f"{whole:,}" + (": this is a piece" if found < whole else "")
        agrees = None if found < whole else found == whole
        return [Check(what="rows", found=f"{found:,}", expected=expected, agrees=agrees)]
    checks = [_compare("train rows", (train,), (facts.train_rows,))]
    if held_out:
        return [*checks, Check(what="test rows", found="no test files", expected=f"{facts.test_rows:,}")]
    return [*checks, _compare("test rows", (test,), (facts.test_rows,))]


def _channels(facts: DatasetInfo, prepared: Prepared) -> list[Check]:
    """Compare mean and deviation per channel, scaled to 0..1, of all rows that the original trains on."""
    if not facts.channel_mean:
        return []
    rows = prepared.record.train_rows + (prepared.record.test_rows if prepared.record.held_out else 0)
    shift, factor = shift_and_factor(prepared.blocks(rows), facts.features, facts.standardise)
    mean, std = tuple((shift / 255).tolist()), tuple((1 / factor / 255).tolist())
    return [
        _compare(name, tuple(round(value, 4) for value in found), expected)
        for name, found, expected in (
            ("mean per channel", mean, facts.channel_mean),
            ("deviation per channel", std, facts.channel_std),
        )
    ]


def _range(prepared: Prepared) -> tuple[float, float]:
    rows = prepared.record.train_rows + prepared.record.test_rows
    extremes = [(float(block.min()), float(block.max())) for block in prepared.blocks(rows)]
    return min(low for low, _ in extremes), max(high for _, high in extremes)


def _compare(what: str, found: tuple[float, ...], expected: tuple[float, ...]) -> Check:
    agrees = found == expected if expected else None
    return Check(what=what, found=_list(found), expected=_list(expected), agrees=agrees)


def _list(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:,}" for value in values)


def _span(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}"
