"""Writes what the bare loop trains, rows, labels and network, as files that need nothing of the harness."""

import sys
from pathlib import Path

import msgspec
import numpy as np

from harness.bench.plan import Task
from harness.bench.script import build_network, standardised


def main() -> None:
    """Write the files into the folder that the command line names behind the task."""
    task, folder = msgspec.json.decode(sys.argv[1], type=Task), Path(sys.argv[2])
    rows, labels = standardised(task)
    np.save(folder / "rows.npy", rows)
    np.save(folder / "labels.npy", labels)
    (folder / "network.json").write_text(build_network(task).to_json())


if __name__ == "__main__":
    main()
