"""Random training scripts print on ranks what they print alone, or are refused: a few in CI with a seed of the day."""

import ast
from pathlib import Path

import pytest

from tests.unseen import day_seed
from tests.unseen.scripts import TOGETHER, count, draw, run_each, run_together, write

FEW = 10
MANY = 200
ENDING = 10
"""Of the many, those that end their process as they like, each in a launch of its own."""
_GOOD = ("right", "refused: ")


@pytest.fixture
def seed() -> int:
    return day_seed() * 1_000_000


def test_every_seed_has_a_script_of_its_own() -> None:
    sources = [write(draw(seed)) for seed in range(300)]
    for source in sources:
        ast.parse(source)
    assert len(set(sources)) == len(sources)


@pytest.mark.mpi  # what is drawn is how scripts behave on ranks
def test_some_random_scripts_are_right_or_refused(tmp_path: Path, seed: int) -> None:
    habits = [draw(seed + number, ends=False) for number in range(FEW)]
    outcomes = run_together(habits, tmp_path)
    print(f"seed {seed}: {dict(count(list(outcomes.values())))}")
    wrong = {str(drawn): said for drawn, said in outcomes.items() if not said.startswith(_GOOD)}
    assert not wrong


@pytest.mark.mpi
@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_many_random_scripts_are_right_or_refused(tmp_path: Path, seed: int) -> None:
    habits = [draw(seed + number, ends=False) for number in range(MANY - ENDING)]
    outcomes = {}
    for first in range(0, len(habits), TOGETHER):
        outcomes |= run_together(habits[first : first + TOGETHER], tmp_path / str(first))
    outcomes |= run_each([draw(seed + MANY + number) for number in range(ENDING)], tmp_path)
    counts = count(list(outcomes.values()))
    print(f"seed {seed}: {dict(counts)}")
    wrong = {str(drawn): said for drawn, said in outcomes.items() if not said.startswith(_GOOD)}
    assert not wrong
    # A launcher that refuses everything would never be wrong.
    assert counts["right"] > 0.7 * len(outcomes)
