"""Random tables are read as they were written, or refused: a few in CI with a seed of the day, many in a campaign."""

from pathlib import Path

import pytest

from tests.unseen import day_seed
from tests.unseen.tables import run_tables

FEW = 40
MANY = 2_000


@pytest.fixture
def seed() -> int:
    return day_seed()


def test_some_random_tables_are_right_or_refused(cache: Path, tmp_path: Path, seed: int) -> None:
    outcomes, wrong = run_tables(FEW, seed, tmp_path)
    print(f"seed {seed}: {dict(outcomes)}")
    assert not wrong, f"seed {seed}: {wrong}"


@pytest.mark.campaign
@pytest.mark.slow  # two thousand tables
def test_many_random_tables_are_right_or_refused_and_plain_ones_are_read(
    cache: Path, tmp_path: Path, seed: int
) -> None:
    outcomes, wrong = run_tables(MANY, seed, tmp_path)
    print(f"seed {seed}: {dict(outcomes)}")
    assert not wrong, f"seed {seed}: {wrong}"
    # A reader that refuses everything would never be wrong.
    read = outcomes["own table, right, plain and told"]
    assert read > 0.85 * (read + outcomes["own table, refused, plain and told"])
