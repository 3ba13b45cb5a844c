# mypy: ignore-errors
"""What `version_entry` does, for commits that have no such module: a file that is handed to them.

It runs by its path, with their `harness` on PYTHONPATH, and uses only names that they have. So it does not change when
names of this tree do: nothing here is imported by this version, and it is frozen.
"""

import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Write the point files of a sweep and prepare its data; the arguments are those of interface 1."""
    from harness.base.errors import UserError
    from harness.datasets import locate, prepare
    from harness.schema.record import decode, encode
    from harness.schema.sweep import Sweep
    from harness.sweep.plan import current

    _, sweep_file, folder, *data_dir = arguments
    try:
        sweep = current(decode(Path(sweep_file).read_bytes(), Sweep, Path(sweep_file)))
        for number, point in enumerate(sweep.points()):
            (Path(folder) / f"{number}.json").write_bytes(encode(point))
        source = locate(sweep.workload, Path(data_dir[0]) if data_dir else None, sweep.data_id)
        if source.kind != "script":
            prepare(source)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
