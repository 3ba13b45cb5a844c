"""How a user's script is run: its settings, and their switches on the command line."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from harness.base.current_user import UserPath
from harness.base.errors import UserError, unknown
from harness.base.setting_names import setting
from harness.schema.own_code import find_policy
from harness.schema.sync_policies import FORMS

BATCHES = ("per-rank", "global")
FUSE_MODES = ("auto", "always", "off")
INPUT = "HARNESS_INPUT"
"""Names the file that every rank of `harness run` has as its standard input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """The switches of one run.

    `batch`: the script's batch size is every rank's own (``per-rank``) or of all ranks together (``global``).
    `verify`: compare the weights of all ranks every so many epochs, 0 for at the end only. `hang_timeout` in
    seconds, 0 for never. `logs`: folder of the other ranks' output. `record`: folder of the run's record. `witness`:
    what of the training one more process does alone and undivided, to compare: the ``first`` steps, or ``all``.
    `unjudged`: there is no such process, and what nobody compares is divided all the same.
    `fuse`: Keras's `fit` makes many steps in one execution where that saves time (``auto``), ``always`` or never
    (``off``). `keep_rank_files`: what ranks above 0 have written is kept. `shared_files`: all ranks write the real
    files, as plain mpirun's do.

    Raises:
        UserError: a switch is out of its range.
    """

    sync: str = "gradients"
    batch: str = "per-rank"
    verify: int = 0
    hang_timeout: float = 120.0
    logs: Path = Path("harness-logs")
    record: Path | None = None
    witness: str = "first"
    unjudged: bool = False
    fuse: str = "auto"
    keep_rank_files: bool = False
    shared_files: bool = False

    def __post_init__(self) -> None:
        if self.fuse not in FUSE_MODES:
            raise unknown("fuse", self.fuse, FUSE_MODES)
        if self.batch not in BATCHES:
            raise unknown("batch", self.batch, BATCHES)
        policy = find_policy(self.sync)
        if not (policy.synchronises and policy.for_scripts):
            why = "is for the harness's own networks" if policy.synchronises else "does not keep the ranks in step"
            raise UserError(f"{setting('sync', self.sync)} {why}: write gradients, weights:K or weights:epoch")
        if self.verify < 0:
            raise UserError(f"verify {self.verify} is negative: use 0 or more epochs")
        if self.hang_timeout < 0:
            raise UserError(f"hang timeout {self.hang_timeout} is negative: use seconds, or 0 for none")


def excluder_of_witness(settings: RunSettings, gpus_per_rank: int) -> str:
    """Return the switch with which no witness can run; an empty text where one can."""
    if settings.record is not None:  # its times count
        return "--record"
    if settings.shared_files:  # its writes would be real ones too
        return "--shared-files"
    if gpus_per_rank:
        return "--gpus-per-rank"
    return "" if find_policy(settings.sync).shares_gradients else f"--sync {settings.sync}"


def mpi_enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether TF_MPI_ENABLE leaves the ranks on: ``1`` (default) or ``0``, the script runs as if alone.

    Raises:
        UserError: it is something else.
    """
    text = environment.get("TF_MPI_ENABLE") or "1"
    if text not in ("0", "1"):
        raise UserError(f"TF_MPI_ENABLE={text} is not a switch: use 0 or 1")
    return text == "1"


Command = TypeVar("Command", bound=Callable[..., Any])

_WITNESS_MODES = ("first", "all")
_OPTIONS = (
    click.option(
        "--sync",
        default="gradients",
        show_default=True,
        envvar="HARNESS_SYNC",
        metavar="POLICY",
        help=f"{FORMS}, or package.module:Class.",
    ),
    click.option(
        "--batch",
        default="per-rank",
        show_default=True,
        envvar="HARNESS_BATCH",
        metavar="per-rank|global",
        help="The script's batch size is per-rank, or global: divided over the ranks.",
    ),
    click.option("--verify", type=int, default=0, help="Compare weights every N epochs, not only at the end."),
    click.option(
        "--hang-timeout",
        type=float,
        default=120.0,
        show_default=True,
        help="Seconds to wait for a rank before the run ends with a report; 0 for ever.",
    ),
    click.option(
        "--logs",
        type=UserPath(),
        default=Path("harness-logs"),
        show_default=True,
        help="Folder for what ranks above 0 print.",
    ),
    click.option(
        "--gpus-per-rank",
        type=click.IntRange(0, 1),
        default=0,
        show_default=True,
        help="1: each rank trains on a GPU of its own.",
    ),
    click.option(
        "--witness",
        type=click.Choice(_WITNESS_MODES),
        metavar="|".join(_WITNESS_MODES),
        default="first",
        show_default=True,
        help="Steps that one more process makes alone and undivided, to compare them: the first 20, or all.",
    ),
    click.option(
        "--unjudged",
        is_flag=True,
        help="Train divided all the same without such a process: nobody says whether it trains as alone.",
    ),
    click.option(
        "--fuse",
        type=click.Choice(FUSE_MODES),
        metavar="|".join(FUSE_MODES),
        default="auto",
        show_default=True,
        help="Many steps of Keras's fit in one execution: where that saves time, always, or off.",
    ),
    click.option("--keep-rank-files", is_flag=True, help="Keep what ranks above 0 wrote, and say where."),
    click.option("--shared-files", is_flag=True, help="All ranks write the real files, as under plain mpirun."),
    click.option("--record", type=UserPath(), help="Write the run's record into this new folder."),
    click.option(
        "--allow-argument",
        multiple=True,
        metavar="NAME",
        help="With --record: an argument of the script that looks like a secret and is none; repeatable.",
    ),
    click.argument("script", type=UserPath()),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
)


def run_options(command: Command) -> Command:
    """Add the switches, SCRIPT and its arguments to a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
