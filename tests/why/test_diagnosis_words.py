"""What a diagnosis says of its causes."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.analysis.read_results import load_sweep
from harness.base.exit_codes import SEPARATE_WORLDS
from harness.why.known_causes import CATALOGUE, diagnose_sweep
from tests.labs.factories import (
    make_point,
    write_failure,
    write_report,
    write_run,
)
from tests.labs.planted_causes import Machine, slower

ROOT = Path(__file__).parents[2]


def test_a_sweep_is_diagnosed_with_its_failures_and_the_page_says_it(tmp_path: Path) -> None:
    sweep = tmp_path / "study"
    write_failure(sweep, make_point(4, 1), "alone in its world", exit_code=SEPARATE_WORLDS)
    case = Machine(ranks=4, own=slower(2, 1.3)).case(np.random.default_rng(0))
    for repeat in range(2):
        write_run(sweep, replace(case.run, point=make_point(4, repeat + 2)))
    found = {one.cause: one for one in diagnose_sweep(load_sweep(sweep))}
    assert set(found) == {"singletons", "a slow rank"}
    assert (found["a slow rank"].launches, found["a slow rank"].of) == (2, 3)
    page = write_report(sweep, tmp_path / "reports").read_text()
    assert page.count("Rank 2 of 4 on node0 is slow: it computed 1.") == 1, "once, in the table of diagnoses"
    assert "was a world of one" in page


def test_the_page_lists_every_known_cause_with_its_fix() -> None:
    page = (ROOT / "docs/why.md").read_text()
    for cause in CATALOGUE:
        find = cause.find or cause.find_failed
        assert find is not None and find.__doc__
        assert f"| {cause.name} | {find.__doc__.strip().splitlines()[0].rstrip('.')} | {cause.fix} |" in page
