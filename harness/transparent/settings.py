"""How a user's script is run: the switches of `harness run` and of the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError, unknown
from harness.spec.sync import SyncSpec

BATCHES = ("per-rank", "global")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The switches of one run.

    `batch`: the script's batch size is every rank's own (``per-rank``) or of all ranks together (``global``).
    `verify`: compare the weights of all ranks every so many epochs, 0 for at the end only. `hang_timeout` in
    seconds, 0 for never. `logs`: folder of the other ranks' output. `record`: folder of the run's record.

    Raises:
        UserError: a switch is out of its range.
    """

    sync: str = "gradients"
    batch: str = "per-rank"
    verify: int = 0
    hang_timeout: float = 120.0
    logs: Path = Path("harness-logs")
    record: Path | None = None

    def __post_init__(self) -> None:
        if self.batch not in BATCHES:
            raise unknown("batch", self.batch, BATCHES)
        if SyncSpec.parse(self.sync).what == "none":
            raise UserError("SYNC=none leaves the ranks apart: write gradients, weights:K or weights:epoch")
        if self.verify < 0:
            raise UserError(f"verify {self.verify} is negative: use 0 or more epochs")
        if self.hang_timeout < 0:
            raise UserError(f"hang timeout {self.hang_timeout} is negative: use seconds, or 0 for none")


def mpi_enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether TF_MPI_ENABLE leaves the ranks on: ``1`` (default) or ``0``, the script runs as if alone.

    Raises:
        UserError: it is something else.
    """
    text = environment.get("TF_MPI_ENABLE") or "1"
    if text not in ("0", "1"):
        raise UserError(f"TF_MPI_ENABLE={text} is no switch: use 0 or 1")
    return text == "1"
