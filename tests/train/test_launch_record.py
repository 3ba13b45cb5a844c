"""What a launch leaves: a record and a table of steps that belong together."""

import hashlib
from pathlib import Path

import numpy as np

from harness.schema.record import read_run
from harness.schema.sweep_folder import LaunchFolder
from harness.train.launch_record import write_run
from tests.labs.factories import make_launch


def test_a_record_has_the_hash_of_its_table_of_steps(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    steps = {"epoch": np.zeros(2, np.int32), "step": np.arange(2, dtype=np.int32), "rank": np.zeros(2, np.int32)}
    times = {"entry_s": np.zeros(2), "exit_s": np.ones(2)}
    write_run(folder, make_launch(1, 0, 1.5), [steps | times])
    table = LaunchFolder(folder).steps.read_bytes()
    assert read_run(folder).steps_sha256 == hashlib.sha256(table).hexdigest()
