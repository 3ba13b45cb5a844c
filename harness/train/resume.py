"""A launch that goes on where an earlier attempt of it has ended: what all ranks hold, as numbers, and back."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import UserError
from harness.comm.policies import hash_weights
from harness.comm.world import World, needs_sync
from harness.train.checkpoint import Header
from harness.train.record import Columns, per_step
from harness.train.replica import Replica

Floats = npt.NDArray[np.float64]
Held = dict[str, npt.NDArray[Any]]


@dataclass(kw_only=True, slots=True)
class PartialEpoch:
    """What one rank has of an epoch that is under way: a value for every step made, times in seconds.

    `losses` as `Epoch` returns them, `calls` [calls, 2] since the epoch's begin, `statistics` the seconds inside batch
    normalisation's calls, empty without them; `seconds` since the epoch's begin, `input_s` of them for the order.
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
        """Add steps that have just been made; `begin` (s, perf_counter) is the epoch's."""
        self.losses.append(losses.numpy())
        self.seconds = time.perf_counter() - begin
        if replica.statistics:
            self.statistics.append(per_step(replica.statistics.take_calls(), len(losses)))
        self.calls.append(replica.reduction.take_calls() - begin)


def hold_variables(world: World, variables: Sequence[keras.Variable]) -> Held:
    """Return the values of all variables on rank 0, once where the ranks have one value, else each rank's own.

    They are copies, under the variable's number and, of a rank's own, the rank's; empty on other ranks.
    """
    held: Held = {}
    alike = len(set(world.comm.allgather(hash_weights(list(variables))))) == 1
    for index, variable in enumerate(variables):
        value = np.array(variable.numpy(), order="C")
        if alike or len(set(world.comm.allgather(hash_weights([variable])))) == 1:
            held |= {f"variable/{index}": value} if world.rank == 0 else {}
            continue
        values = np.empty((world.size, value.nbytes), np.uint8) if world.rank == 0 else None
        world.comm.Gather(_raw(value), values, root=0)
        for rank, row in enumerate(values if values is not None else ()):
            held[f"variable/{index}/{rank}"] = row.copy().view(value.dtype).reshape(value.shape)
    return held


def restore_variables(world: World, replica: Replica, held: Held, ranks: int) -> None:
    """Set all variables to what `hold_variables` of `ranks` ranks held; only rank 0 need have it.

    On another number of ranks, values of each rank's own (optimizer state under averaged weights, statistics of batch
    normalisation) become their mean.

    Raises:
        SharedError: they are not of this network, or were each rank's own and have no mean; on every rank.
    """
    variables = state_variables(replica)
    trained = {id(variable) for variable in replica.state.model.trainable_variables}
    world.on_root(lambda: _check(held, variables, trained, None if ranks == world.size else ranks))
    shared = world.comm.bcast([f"variable/{index}" in held for index in range(len(variables))], root=0)
    for index, variable in enumerate(variables):
        value = np.array(variable.numpy(), order="C")
        if shared[index] or ranks != world.size:
            if world.rank == 0:
                value[...] = held[f"variable/{index}"] if shared[index] else _mean(held, index, ranks)
            world.comm.Bcast(_raw(value), root=0)
        else:
            own = [_raw(held[f"variable/{index}/{rank}"]) for rank in range(ranks)] if world.rank == 0 else None
            world.comm.Scatter(np.stack(own) if own is not None else None, _raw(value), root=0)
        variable.assign(value)


def state_variables(replica: Replica) -> list[keras.Variable]:
    """Return all that training changes: weights, statistics and seeds of random layers, the optimizer's own."""
    return [*replica.state.model.variables, *replica.state.optimizer.variables]


def _raw(value: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous array, without a copy: MPI does not know all of TensorFlow's types."""
    return value.reshape(-1).view(np.uint8)


def _mean(held: Held, index: int, ranks: int) -> npt.NDArray[Any]:
    return np.asarray(np.mean([held[f"variable/{index}/{rank}"] for rank in range(ranks)], axis=0, dtype=np.float64))


def _check(held: Held, variables: Sequence[keras.Variable], trained: set[int], other_ranks: int | None) -> None:
    """Raise a UserError where the held values do not suit; `other_ranks` is their number of ranks if it is another."""
    count = len({name.split("/")[1] for name in held if name.startswith("variable/")})
    if count != len(variables):
        raise UserError(f"the checkpoint has {count} variables, this network {len(variables)}: use another --record")
    for index, variable in enumerate(variables):
        value = held.get(f"variable/{index}", held.get(f"variable/{index}/0"))
        own = variable.numpy()
        if value is None or value.shape != own.shape or value.dtype.itemsize != own.dtype.itemsize:
            raise UserError(
                f"the checkpoint does not have this network's variable '{variable.path}': use another --record"
            )
        if other_ranks and f"variable/{index}" not in held and (id(variable) in trained or own.dtype.kind in "iub"):
            raise UserError(
                f"the checkpoint has '{variable.path}' of each of its {other_ranks} ranks, of which there is no mean: "
                f"go on with {other_ranks} ranks"
            )


def hold_steps(columns: Sequence[Columns], part: PartialEpoch | None) -> Held:
    """Return one rank's columns of whole epochs, and its part of the one under way, as arrays."""
    held = {f"columns/{name}": np.concatenate([one[name] for one in columns]) for name in columns[0]} if columns else {}
    if part is not None:
        held |= {f"part/{name}": np.concatenate(value) for name, value in _lists(part).items() if value}
        held["part/times"] = np.array([part.seconds, part.input_s])
    return held


def _lists(part: PartialEpoch) -> dict[str, Any]:
    return {"losses": part.losses, "calls": part.calls, "statistics": part.statistics}


def read_steps(held: Held) -> tuple[list[Columns], PartialEpoch]:
    """Return what `hold_steps` held; the epochs begin now, on this process's clock, which another one's is not."""
    columns = {name.removeprefix("columns/"): value for name, value in held.items() if name.startswith("columns/")}
    found: list[Columns] = []
    if columns:
        columns["begin_s"] = np.full(len(columns["epoch"]), time.perf_counter())
        borders = np.flatnonzero(np.diff(columns["epoch"])) + 1
        pieces = {name: np.split(value, borders) for name, value in columns.items()}
        found = [{name: value[epoch] for name, value in pieces.items()} for epoch in range(len(borders) + 1)]
    lists: dict[str, Any] = {name: [held[f"part/{name}"]] for name in _lists(PartialEpoch()) if f"part/{name}" in held}
    times = held.get("part/times", np.zeros(2))
    return found, PartialEpoch(**lists, seconds=float(times[0]), input_s=float(times[1]))


def part_for_others(parts: Sequence[PartialEpoch], replica: Replica) -> PartialEpoch:
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


def check_alike(header: Header, replica: Replica, where: object) -> None:
    """Refuse a checkpoint of another launch; the number of ranks may be another, the global batch may not.

    Raises:
        UserError: naming what is another.
    """
    shards = replica.data.shards
    here = replace(header, point=replica.point, global_batch=shards.batch, steps_per_epoch=shards.full_steps)
    for name, old, new in _facts(header, here):
        if old != new:
            raise UserError(
                f"the checkpoints in '{where}' are of another launch ({name.replace('_', ' ')} {old}, here {new}): "
                "delete that folder, or choose another --record"
            )


def _facts(there: Header, here: Header) -> list[tuple[str, Any, Any]]:
    """Return what two attempts of one launch have alike: names, and the values of both."""
    skipped = {"batch_per_rank", "global_batch", "checkpoint"}
    workloads = (there.point.workload, here.point.workload)
    names = [one.name for one in fields(workloads[0]) if one.compare and one.name not in skipped]
    facts = [(name, *(getattr(workload, name) for workload in workloads)) for name in names]
    facts += [(name, getattr(there, name), getattr(here, name)) for name in ("global_batch", "steps_per_epoch")]
    return facts + [(name, getattr(there.point, name), getattr(here.point, name)) for name in ("seed", "data_id")]
