"""The state of a launch as a checkpoint's arrays, and back: variables of all ranks, steps of each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.base.turns import clock
from harness.comm.replicas import hash_weights
from harness.comm.world import World, needs_sync
from harness.schema.setting_words import setting_differences
from harness.train.checkpoint_file import Arrays, Header
from harness.train.partial_epoch import PartialEpoch
from harness.train.replica import Replica
from harness.train.step_table import Columns

_LISTS = ("losses", "calls", "statistics")  # of a `PartialEpoch`


def gather_variables(replica: Replica) -> Arrays:
    """Return copies of all variables on rank 0, one where all ranks have the same value, else each rank's own.

    They are under the variable's number and, of a rank's own, the rank's; empty on other ranks.
    """
    world = replica.world
    variables = replica.variables
    arrays = Arrays()
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
    world = replica.world
    variables = replica.variables
    world.on_root(lambda: _check_variables(replica, arrays, ranks))
    shared = world.comm.bcast([f"variable/{index}" in arrays for index in range(len(variables))], root=0)
    for index, variable in enumerate(variables):
        value = np.array(variable.numpy(), order="C")
        rank_values = None
        if arrays and not shared[index]:
            rank_values = [arrays[f"variable/{index}/{rank}"] for rank in range(ranks)]
        if shared[index] or ranks != world.size:
            if rank_values is not None:
                value[...] = np.mean(rank_values, axis=0, dtype=np.float64)
            elif arrays:
                value[...] = arrays[f"variable/{index}"]
            world.comm.Bcast(_raw(value), root=0)
        else:
            sent = None if rank_values is None else np.stack(list(map(_raw, rank_values)))
            world.comm.Scatter(sent, _raw(value), root=0)
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
        current = variable.numpy()
        if value is None or value.shape != current.shape or value.dtype.itemsize != current.dtype.itemsize:
            raise UserError(
                f"the checkpoint does not have this network's variable '{variable.path}': use another --record"
            )
        meaningless = id(variable) in trained or current.dtype.kind in "iub"
        if ranks != replica.world.size and f"variable/{index}" not in arrays and meaningless:
            raise UserError(
                f"the checkpoint has '{variable.path}' of each of its {ranks} ranks, of which there is no mean: "
                f"go on with {ranks} ranks"
            )


def steps_to_arrays(columns: Sequence[Columns], part: PartialEpoch) -> Arrays:
    """Return one rank's columns of whole epochs, and its part of the one under way, as arrays."""
    lists = {}
    for name in columns[0] if columns else ():
        lists[f"columns/{name}"] = [epoch_columns[name] for epoch_columns in columns]
    lists |= {f"part/{name}": getattr(part, name) for name in _LISTS if getattr(part, name)}
    times = {"part/times": np.array([part.seconds, part.input_s])}
    return {name: np.concatenate(values) for name, values in lists.items()} | times


def steps_from_arrays(arrays: Arrays) -> tuple[list[Columns], PartialEpoch]:
    """Return what `steps_to_arrays` was given.

    The epochs begin now, on this process's clock, which is not the clock of the one that wrote them.
    """
    columns = {name.removeprefix("columns/"): value for name, value in arrays.items() if name.startswith("columns/")}
    epochs: list[Columns] = []
    if columns:
        columns["begin_s"] = np.full(len(columns["epoch"]), clock())
        borders = np.flatnonzero(np.diff(columns["epoch"])) + 1
        pieces = {name: np.split(value, borders) for name, value in columns.items()}
        for epoch in range(len(borders) + 1):
            epochs.append({name: value[epoch] for name, value in pieces.items()})
    lists: dict[str, Any] = {name: [arrays[f"part/{name}"]] for name in _LISTS if f"part/{name}" in arrays}
    times = arrays.get("part/times", np.zeros(2))
    return epochs, PartialEpoch(**lists, seconds=float(times[0]), input_s=float(times[1]))


def part_of_others(parts: Sequence[PartialEpoch], replica: Replica) -> PartialEpoch:
    """Return what a rank of another number of ranks takes over of `parts`: rank 0 all losses, none of them times."""
    world = replica.world
    steps = parts[0].steps
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


def check_same_launch(header: Header, replica: Replica, where: object) -> None:
    """Refuse a checkpoint of another launch; the number of ranks may be another, the global batch may not.

    Raises:
        UserError: naming what is another.
    """
    point = replica.point
    shards = replica.data.shards
    before = header.point
    free = {name: getattr(point.workload, name) for name in ("batch_per_rank", "global_batch", "checkpoint")}
    differences: list[tuple[str, object, object]] = [
        *setting_differences(replace(before.workload, **free), point.workload),
        ("global batch", header.global_batch, shards.batch),
        ("steps per epoch", header.steps_per_epoch, shards.full_steps),
        ("seed", before.seed, point.seed),
        ("data", before.data_id, point.data_id),
    ]
    for name, old, new in differences:
        if old != new:
            raise UserError(
                f"the checkpoints in '{where}' are of another launch ({name} {old}, here {new}): "
                "delete that folder, or choose another --record"
            )
