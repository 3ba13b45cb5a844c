"""What a sweep says of its data before it begins: which rows, and whether synthetic ones stand in for real ones."""

from collections.abc import Iterable
from pathlib import Path

from harness.datasets import locate
from harness.schema.sweep import Sweep
from harness.sweep.progress import say


def announce_data(sweeps: Iterable[Sweep], data_dir: Path | None) -> None:
    """Say on which data the `sweeps` train, loudly where synthetic rows stand in for real ones and nobody asked."""
    lines: dict[str, None] = {}
    for workload in dict.fromkeys(sweep.workload for sweep in sweeps):
        source = locate(workload, data_dir)
        unasked = source.kind == "synthetic" and workload.data == "auto" and workload.input != "resident"
        if unasked:
            ways = "DATA_DIR=folder names the real files, DATA_KIND=synthetic hides this line"
            line = f"SYNTHETIC DATA: {source.note}. {ways}."
        else:
            line = f"data: {source.name}, {source.kind}" + (f": {source.note}" if source.note else "")
        lines[line] = None
    for line in lines:
        say(line)
