"""What one version of the harness asks of another: write the point files of a sweep, in your own code.

    python -m harness.regression.version_entry 1 SWEEP_FILE FOLDER [DATA_DIR]

A check runs it in the tree of each version that it compares, so that `harness` is the version on PYTHONPATH. It writes
FOLDER/0.json, FOLDER/1.json, ... for the points of the sweep in SWEEP_FILE and brings the data into the cache. What the
version refuses is one sentence on standard error, with exit code 1.

The first argument is the number of this interface. Whoever changes the arguments, or what is written, counts
`INTERFACE` up and has this module answer the numbers before it too: commits ask each other for years.
"""

import sys
from pathlib import Path

from harness.base.errors import UserError
from harness.datasets import locate, prepare
from harness.schema.record import decode, encode
from harness.schema.sweep import Sweep
from harness.schema.workload import SCRIPT
from harness.sweep.planned_launches import current

INTERFACE = 1


def write_points(sweep_file: Path, folder: Path, data_dir: Path | None) -> None:
    """Write the point files of the sweep in `sweep_file`, as this version has it, and prepare its data.

    Raises:
        UserError: the file is damaged, or this version refuses the sweep or its data.
    """
    sweep = current(decode(sweep_file.read_bytes(), Sweep, sweep_file))
    for number, point in enumerate(sweep.points()):
        (folder / f"{number}.json").write_bytes(encode(point))
    source = locate(sweep.workload, data_dir, sweep.data_id)
    if source.kind != SCRIPT:
        prepare(source)


def main(arguments: list[str]) -> None:
    """Answer one call; exit with a sentence where this version refuses it."""
    interface, sweep_file, folder, *data_dir = arguments
    if interface != str(INTERFACE):
        sys.exit(f"this version answers interface {INTERFACE} of version_entry, and was asked for {interface}")
    try:
        write_points(Path(sweep_file), Path(folder), Path(data_dir[0]) if data_dir else None)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
