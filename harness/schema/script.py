"""A user's script as a workload: what it trains is its own business, how it is started is ours."""

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import UserError
from harness.schema.workload import Workload

DATASET = "script"


def script_workload(script: Path, arguments: Sequence[str], *, sync: str, batch: str) -> Workload:
    """Return the workload of a script with its arguments. `batch`: its batch size is ``per-rank`` or ``global``.

    Whichever of the two batch fields is set is 1: the size itself is in the script.
    """
    sizes = {"global_batch": 1} if batch == "global" else {"batch_per_rank": 1}
    return Workload(
        dataset=DATASET,
        model=script.stem,
        preset=DATASET,
        data_file=shlex.join([str(script.resolve()), *arguments]),
        sync=sync,
        **sizes,  # type: ignore[arg-type]
    )


def is_script(workload: Workload) -> bool:
    """Tell whether `workload` is a user's script."""
    return workload.dataset == DATASET and workload.preset == DATASET


def script_command(workload: Workload) -> tuple[Path, tuple[str, ...]]:
    """Return a script workload's path and arguments."""
    script, *arguments = shlex.split(workload.data_file or "")
    return Path(script), tuple(arguments)


def batch_mode(workload: Workload) -> str:
    """Return ``global`` or ``per-rank``: what a script workload's batch size is of."""
    return "global" if workload.global_batch is not None else "per-rank"


def script_id(script: Path) -> str:
    """Return the SHA-256 of the script's text.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"script '{script}' cannot be read: {error.strerror}; give the path of a Python file"
        ) from error
