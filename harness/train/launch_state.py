"""How far a launch has come: what a rank has of its epochs, and all variables; as arrays, and back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import UserError
from harness.base.turns import clock
from harness.comm.policies import hash_weights
from harness.comm.world import World, needs_sync
from harness.schema.record import EpochRecord
from harness.train.checkpoint_file import Arrays
from harness.train.replica import Replica
from harness.train.step_table import Columns, per_step

_LISTS = ("losses", "calls", "statistics")  # of a `PartialEpoch`

Floats = npt.NDArray[np.float64]


@dataclass(kw_only=True, slots=True)
class PartialEpoch:
    """What one rank has of an epoch that is under way: a value for every step made, times in seconds.

    `losses` as `Epoch` returns them, `calls` [calls, 2] since the epoch's begin, `statistics` the seconds inside batch
    normalisation's calls, empty without them; `seconds` since the epoch's begin, `input_s` of them for the order.
    `before`: steps that were made earlier and have no value here.
    """

    losses: list[npt.NDArray[np.float32]] = field(default_factory=list)
    calls: list[Floats] = field(default_factory=list)
    statistics: list[Floats] = field(default_factory=list)
    seconds: float = 0.0
    input_s: float = 0.0
    before: int = 0

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return self.before + sum(map(len, self.losses))

    def add(self, replica: Replica, begin: float, losses: tf.Tensor) -> None:
        """Add steps that have just been made; `begin` (s, clock) is the epoch's."""
        self.losses.append(losses.numpy())
        self.seconds = clock() - begin
        if replica.statistics:
            self.statistics.append(per_step(replica.statistics.take_calls(), len(losses)))
        self.calls.append(replica.reduction.take_calls() - begin)


@dataclass(kw_only=True, slots=True)
class Progress:
    """What a launch has behind it: records and columns of whole epochs, and its part of the one under way."""

    epochs: list[EpochRecord] = field(default_factory=list)
    steps: list[Columns] = field(default_factory=list)
    part: PartialEpoch = field(default_factory=PartialEpoch)
    before: int = 0
    """Whole epochs that were trained on another number of ranks: they are in neither list."""

    @property
    def epoch(self) -> int:
        """The number of the epoch that comes next or is under way."""
        return self.before + len(self.epochs)


def gather_variables(replica: Replica) -> Arrays:
    """Return copies of all variables on rank 0, one where all ranks have the same value, else each rank's own.

    They are under the variable's number and, of a rank's own, the rank's; empty on other ranks.
    """
    world, variables, arrays = replica.world, replica.variables, Arrays()
    all_equal = _equal_on_all(world, variables)
    for index, variable in enumerate(variables):
        value = np.array(variable.numpy(), order="C")
        if all_equal or _equal_on_all(world, [variable]):
            arrays |= {f"variable/{index}": value} if world.rank == 0 else {}
            continue
        values = np.empty((world.size, value.nbytes), np.uint8) if world.rank == 0 else None
        world.comm.Gather(_raw(value), values, root=0)
        for rank, row in enumerate(values if values is not None else ()):
            arrays[f"variable/{index}/{rank}"] = row.copy().view(value.dtype).reshape(value.shape)
    return arrays


def _equal_on_all(world: World, variables: list[keras.Variable]) -> bool:
    return len(set(world.comm.allgather(hash_weights(variables)))) == 1


def restore_variables(replica: Replica, arrays: Arrays, ranks: int) -> None:
    """Set all variables to what `gather_variables` found on `ranks` ranks; only rank 0 need have it.

    On another number of ranks, values of each rank's own (optimizer state under averaged weights, statistics of batch
    normalisation) become their mean, but for what a sync policy keeps.

    Raises:
        SharedError: they are not of this network, or were each rank's own and have no mean; on every rank.
    """
    world, variables = replica.world, replica.variables
    world.on_root(lambda: _check_variables(replica, arrays, ranks))
    shared = world.comm.bcast([f"variable/{index}" in arrays for index in range(len(variables))], root=0)
    for index, variable in enumerate(variables):
        value = np.array(variable.numpy(), order="C")
        own = [arrays[f"variable/{index}/{rank}"] for rank in range(ranks)] if arrays and not shared[index] else None
        if shared[index] or ranks != world.size:
            if arrays:
                value[...] = arrays[f"variable/{index}"] if own is None else np.mean(own, axis=0, dtype=np.float64)
            world.comm.Bcast(_raw(value), root=0)
        else:
            world.comm.Scatter(None if own is None else np.stack([_raw(one) for one in own]), _raw(value), root=0)
        variable.assign(value)


def _raw(value: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous array, without a copy: MPI does not know all of TensorFlow's types."""
    return value.reshape(-1).view(np.uint8)


def _check_variables(replica: Replica, arrays: Arrays, ranks: int) -> None:
    """Raise a UserError where the values in `arrays`, of `ranks` ranks, do not suit this network or number of ranks."""
    variables = replica.variables
    state = replica.state
    trained = {id(variable) for variable in (*state.model.trainable_variables, *state.synchroniser.state)}
    count = len({name.split("/")[1] for name in arrays if name.startswith("variable/")})
    if count != len(variables):
        raise UserError(f"the checkpoint has {count} variables, this network {len(variables)}: use another --record")
    for index, variable in enumerate(variables):
        value = arrays.get(f"variable/{index}", arrays.get(f"variable/{index}/0"))
        own = variable.numpy()
        if value is None or value.shape != own.shape or value.dtype.itemsize != own.dtype.itemsize:
            raise UserError(
                f"the checkpoint does not have this network's variable '{variable.path}': use another --record"
            )
        meaningless = id(variable) in trained or own.dtype.kind in "iub"
        if ranks != replica.world.size and f"variable/{index}" not in arrays and meaningless:
            raise UserError(
                f"the checkpoint has '{variable.path}' of each of its {ranks} ranks, of which there is no mean: "
                f"go on with {ranks} ranks"
            )


def arrays_of_rank(arrays: Arrays, rank: int) -> Arrays:
    """Return what `arrays` have of one rank's steps (`steps_to_arrays`)."""
    prefix = f"rank/{rank}/"
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def steps_to_arrays(columns: Sequence[Columns], part: PartialEpoch) -> Arrays:
    """Return one rank's columns of whole epochs, and its part of the one under way, as arrays."""
    lists = {f"columns/{name}": [one[name] for one in columns] for name in (columns[0] if columns else ())}
    lists |= {f"part/{name}": getattr(part, name) for name in _LISTS if getattr(part, name)}
    times = {"part/times": np.array([part.seconds, part.input_s])}
    return {name: np.concatenate(values) for name, values in lists.items()} | times


def steps_from_arrays(arrays: Arrays) -> tuple[list[Columns], PartialEpoch]:
    """Return what `steps_to_arrays` was given.

    The epochs begin now, on this process's clock, which is not the clock of the one that wrote them.
    """
    columns = {name.removeprefix("columns/"): value for name, value in arrays.items() if name.startswith("columns/")}
    found: list[Columns] = []
    if columns:
        columns["begin_s"] = np.full(len(columns["epoch"]), clock())
        borders = np.flatnonzero(np.diff(columns["epoch"])) + 1
        pieces = {name: np.split(value, borders) for name, value in columns.items()}
        found = [{name: value[epoch] for name, value in pieces.items()} for epoch in range(len(borders) + 1)]
    lists: dict[str, Any] = {name: [arrays[f"part/{name}"]] for name in _LISTS if f"part/{name}" in arrays}
    times = arrays.get("part/times", np.zeros(2))
    return found, PartialEpoch(**lists, seconds=float(times[0]), input_s=float(times[1]))


def part_of_others(parts: Sequence[PartialEpoch], replica: Replica) -> PartialEpoch:
    """Return what a rank of another number of ranks takes over of `parts`: rank 0 all losses, none of them times."""
    world, steps = replica.world, parts[0].steps
    if not steps:
        return PartialEpoch()
    losses = np.asarray(np.sum([np.concatenate(part.losses) for part in parts], axis=0, dtype=np.float64), np.float32)
    policy = replica.state.synchroniser.policy
    every = 1 if policy.shares_gradients else policy.period
    calls = steps // every if every and needs_sync(world.size) else 0
    return PartialEpoch(
        losses=[losses if world.rank == 0 else np.zeros_like(losses)],
        calls=[np.full((calls, 2), np.nan)],
        statistics=[np.zeros(steps)] if replica.statistics else [],
    )
