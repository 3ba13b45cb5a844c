"""No headline without its warnings: invalid launches, no training, more speedup than there can be."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.analysis.read_results import load_sweep
from harness.why.known_causes import diagnose_sweep
from tests.labs.factories import (
    make_point,
    write_run,
    write_study,
)
from tests.labs.planted_causes import Machine, slower

BUSY = "other processes kept 1.2 cores of node1 busy"
SLOW_RANK = "a slow rank"


def test_what_other_work_met_is_diagnosed_only_where_nothing_else_is_there(tmp_path: Path) -> None:
    write_study(tmp_path, ranks=(2,))
    case = Machine(ranks=2, own=slower(1, 1.3)).case(np.random.default_rng(0))
    write_run(tmp_path, replace(case.run, point=make_point(2, 0), invalid=(BUSY,)))
    assert [one.cause for one in diagnose_sweep(load_sweep(tmp_path))] == [SLOW_RANK]
    even = Machine(ranks=2).case(np.random.default_rng(0))
    write_run(tmp_path, replace(even.run, point=make_point(2, 1)))
    assert diagnose_sweep(load_sweep(tmp_path)) == ()
