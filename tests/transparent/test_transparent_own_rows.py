"""Scripts that read with DataSet: nothing is divided twice, and what all ranks' rows give is what one rank's give."""

import json

import numpy as np
import pytest

from tests.mpi.launch import PROGRAMS, run_ranks

pytestmark = pytest.mark.mpi


def printed(ranks, folder):
    finished = run_ranks(
        ranks, "-m", "harness.transparent", PROGRAMS / "own_rows_script.py", folder / "data.npz", cwd=folder
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert ("sha256" in finished.stdout) == (ranks > 1)
    lines = [line.partition(" ") for line in finished.stdout.splitlines()]
    return [json.loads(rest) for key, _, rest in lines if key in ("HISTORY", "LOOP", "BATCH", "SESSION")]


def test_own_rows_of_all_ranks_train_as_the_rows_of_one(tmp_path):
    """32 training rows (11, 11, 10) and 10 of validation; the batches of 5 are 3 and 2 steps, filled up to 3."""
    rows = np.random.default_rng(5)
    x = rows.normal(size=(42, 3)).astype("float32")
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype("int64"))
    alone, divided = printed(1, tmp_path), printed(3, tmp_path)
    whole, steps, loop, batch, session = range(5)
    for key, values in alone[whole].items():
        assert divided[whole][key] == pytest.approx(values, rel=1e-5), key
    assert divided[loop] == pytest.approx(alone[loop], rel=1e-5)
    assert divided[batch] == pytest.approx(alone[batch], rel=1e-5)
    assert divided[session] == pytest.approx(alone[session], rel=1e-5)
    assert divided[steps]["loss"][-1] < divided[steps]["loss"][0]
    assert len(divided[steps]["val_accuracy"]) == 6
