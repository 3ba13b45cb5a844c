"""Sweeps on a real Slurm."""

from harness.schema.record import RunRecord, read_run
from tests.cluster.conftest import Terminal

TINY = ("sweep", "--dataset", "adult", "--data-kind", "synthetic", "--samples", "640", "--epochs", "2")
TINY += ("--ranks-per-node", "1", "--threads", "1")  # the nodes share this machine's cores


def records(terminal: Terminal) -> dict[int, RunRecord]:
    """Return the records by their number of nodes."""
    found = [read_run(path.parent) for path in terminal.sweep_folder.glob("*/run.json")]
    return {record.point.layout.nodes: record for record in found}


def nodes_of(record: RunRecord) -> list[str]:
    return [rank.node for rank in record.ranks]
