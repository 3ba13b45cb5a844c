"""The table of a launch's steps as a file: whole, and the one that its record names."""

import hashlib
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import read_bytes
from harness.schema.sweep_folder import RUN_FILE

STEP_COLUMNS = frozenset({"epoch", "step", "rank", "entry_s", "exit_s"})


def check_steps(path: Path, sha256: str) -> None:
    """Check that the table of steps at `path` is whole, and the one with the hash `sha256`, where that is not empty.

    Raises:
        UserError: it is missing, damaged or another.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise UserError(f"'{path.parent}' has no {path.name}: delete the folder and run the point again")
    try:
        columns = set(pq.read_schema(path).names)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"'{path}' is cut or damaged: delete its folder and run the point again") from error
    if missing := STEP_COLUMNS - columns:
        raise UserError(f"'{path}' lacks the columns {', '.join(sorted(missing))}: run the point again")
    if sha256 and hashlib.sha256(read_bytes(path)).hexdigest() != sha256:
        raise UserError(
            f"'{path}' is not the table that its {RUN_FILE} names: delete the folder and run the point again"
        )
