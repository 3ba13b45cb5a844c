"""What a launch leaves: a record and a table of steps that belong together."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.comm.placement_check import RankPlace
from harness.schema.record import Segment, read_run
from harness.schema.sweep_folder import LaunchFolder
from harness.train.launch_record import validity, write_run
from tests.labs.factories import make_launch


def test_a_record_has_the_hash_of_its_table_of_steps(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    steps = {"epoch": np.zeros(2, np.int32), "step": np.arange(2, dtype=np.int32), "rank": np.zeros(2, np.int32)}
    times = {"entry_s": np.zeros(2), "exit_s": np.ones(2)}
    write_run(folder, make_launch(1, 0, 1.5), [steps | times])
    table = LaunchFolder(folder).steps.read_bytes()
    assert read_run(folder).steps_sha256 == hashlib.sha256(table).hexdigest()


@pytest.mark.parametrize(("epoch", "is_valid"), [(0, True), (2, False)])
def test_a_resumed_launch_is_valid_by_the_epochs_after_the_one_where_it_was_taken_up(
    epoch: int, is_valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_BLOCK", raising=False)
    run = make_launch(2, 0, 1.5)
    attempt = Segment(started=run.started, ended=run.ended, begin=(0, 0), end=(epoch, 7), ranks=2)
    outcome = SimpleNamespace(
        epochs=run.epochs,
        segments=(attempt, replace(attempt, begin=(epoch, 7), end=(3, 0))),
        losses=(),
        replica=SimpleNamespace(point=run.point),
    )
    places = [(RankPlace(host="node1", cores=(rank,)), 2) for rank in range(2)]
    invalid, _ = validity(outcome, places, run.ranks, {"node1": 0.0})
    assert (not invalid) == is_valid
