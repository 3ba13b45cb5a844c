"""Every synchronisation call of a launch, as steps.parquet has it: when each rank came and when it left."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.schema.record import EpochRecord, RunRecord
from harness.schema.sweep_folder import LaunchFolder

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """The calls of one epoch. Times in seconds since rank 0 began it, on rank 0's clock.

    `begin` and `end` [ranks] are each rank's own of the epoch; `step` [calls] is the step that a call ended, `entry`
    and `exit` [calls, ranks] when each rank came and left. `turn` [calls] is the turn in which a call was timed, from
    1; 0 of a call that was not, and of all calls of a launch without turns. `statistics` [calls + 1, ranks] is what a
    rank spent in the allreduces of batch normalisation between two calls, before the first and after the last, `input`
    what it waited for rows there once the epoch's order was drawn.
    """

    epoch: int
    begin: Array
    end: Array
    step: NDArray[np.int32]
    entry: Array
    exit: Array
    turn: NDArray[np.int32]
    statistics: Array
    input: Array

    @property
    def skew(self) -> Array:
        """Waiting for the last rank to come, [calls, ranks]."""
        waited: Array = self.entry.max(axis=1, keepdims=True) - self.entry
        return waited

    @property
    def wire(self) -> Array:
        """The allreduce itself: from the last rank's entry to the own exit, [calls, ranks]."""
        summed: Array = self.exit - self.entry.max(axis=1, keepdims=True)
        return summed

    @property
    def between(self) -> Array:
        """What a rank did outside of all allreduces: before every call, and after the last one; [calls + 1, ranks]."""
        left = np.vstack([self.begin, self.exit])
        came = np.vstack([self.entry, self.end])
        outside: Array = came - left - self.statistics
        return outside


def read_calls(folder: Path, run: RunRecord) -> tuple[Calls, ...]:
    """Return the calls of every epoch of `run`, read with its epochs from the launch's `folder`.

    An epoch without a call (one rank alone, SYNC=none, a script whose ranks made different numbers of calls) has
    none.

    Raises:
        UserError: the table is damaged, of an older harness, or not of this record; ranks of the launch failed.
    """
    if run.losses:
        raise UserError(
            f"'{folder}' went on after ranks failed, whose steps are not recorded: what it trained between failures is "
            "on its sweep's page"
        )
    path = LaunchFolder(folder).steps
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"'{path}' cannot be read: delete its folder and run the point again") from error
    if "begin_s" not in table.column_names:
        raise UserError(f"'{path}' is of an older harness and lacks begin_s: run the point again")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    order = np.lexsort((columns["step"], columns["rank"], columns["epoch"]))
    columns = {name: values[order] for name, values in columns.items()}
    return tuple(_epoch(path, columns, epoch, len(run.ranks)) for epoch in run.epochs)


def _epoch(path: Path, columns: dict[str, NDArray[np.generic]], epoch: EpochRecord, ranks: int) -> Calls:
    first, last = np.searchsorted(columns["epoch"], [epoch.epoch, epoch.epoch + 1])
    if last - first != epoch.steps * ranks:
        raise UserError(
            f"'{path}' has {last - first} rows of epoch {epoch.epoch}, its record {epoch.steps} steps on {ranks} "
            "ranks: delete the folder and run the point again"
        )

    def of(name: str) -> Array:
        return columns[name][first:last].astype(np.float64).reshape(ranks, epoch.steps).T

    entry = of("entry_s")
    exit_s = of("exit_s")
    called = np.isfinite(entry).all(axis=1) & np.isfinite(exit_s).all(axis=1)
    begin = of("begin_s")[0]
    steps = np.flatnonzero(called)

    def spent(name: str) -> Array:
        seconds = of(name) if name in columns else np.zeros_like(entry)
        until = np.vstack([np.zeros(ranks), seconds.cumsum(axis=0)])
        between: Array = np.diff(until[[0, *(steps + 1), epoch.steps]], axis=0)
        return between

    return Calls(
        epoch=epoch.epoch,
        begin=begin,
        end=begin + np.asarray(epoch.seconds),
        step=steps.astype(np.int32),
        entry=entry[called],
        exit=exit_s[called],
        turn=of("turn")[called, 0].astype(np.int32) if "turn" in columns else np.zeros(len(steps), np.int32),
        statistics=spent("statistics_s"),
        input=spent("input_s"),
    )
