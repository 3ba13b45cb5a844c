"""A baseline is saved under a name that is free, or in the place of a baseline."""

from pathlib import Path

import pytest

from harness.regression.baselines import read_baselines, save_baseline
from tests.labs.histories import make_measurement, make_summary
from tests.labs.sentences import refuses


@pytest.fixture
def measured():
    return make_measurement([make_summary(1, block, 1.0, minutes=block) for block in range(6)])


def test_a_file_that_is_no_baseline_is_not_replaced(measured, tmp_path: Path) -> None:
    (tmp_path / "main.json").write_text('{"mine": 1}')
    with refuses("main.json", "is no baseline"):
        save_baseline(measured, "main", tmp_path, replace_it=True)
    assert (tmp_path / "main.json").read_text() == '{"mine": 1}'


def test_a_baseline_is_replaced_if_that_is_asked_for(measured, tmp_path: Path) -> None:
    for replace_it in (False, True):
        save_baseline(measured, "main", tmp_path, replace_it=replace_it)
    with refuses("'main' exists already"):
        save_baseline(measured, "main", tmp_path, replace_it=False)
    assert [baseline.name for baseline in read_baselines(tmp_path)] == ["main"]
