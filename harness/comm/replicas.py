"""The weights of all ranks: made equal, and proved to be."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from harness.base.errors import RunError, SharedError
from harness.comm.world import World

if TYPE_CHECKING:
    import keras


def broadcast_weights(world: World, variables: "list[keras.Variable]") -> None:
    """Set every variable on every rank to rank 0's value."""
    for variable in variables:
        value = np.array(variable.numpy(), order="C")  # of the same shape, also for a scalar
        world.comm.Bcast(value, root=0)
        if world.rank:
            variable.assign(value)


def hash_weights(variables: "list[keras.Variable]") -> str:
    """Return the SHA-256 of all values in order, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()


def verify_replicas(world: World, variables: "list[keras.Variable]") -> str:
    """Return the weight hash that all ranks share.

    Raises:
        SharedError: a RunError on every rank, naming the first variable that differs and the ranks.
    """
    weight_hash = hash_weights(variables)
    hashes = world.comm.allgather(weight_hash)
    if len(set(hashes)) == 1:
        return weight_hash
    parts = world.comm.allgather([hash_weights([variable]) for variable in variables])
    for index, variable in enumerate(variables):
        odd = [rank for rank in range(world.size) if parts[rank][index] != parts[0][index]]
        if odd:
            ranks = ", ".join(map(str, odd))
            name = getattr(variable, "path", variable.name)  # TensorFlow's own has no path
            raise SharedError(RunError(f"replicas differ: variable '{name}' of rank {ranks} is not that of rank 0"))
    raise AssertionError("the hashes of all weights differ, but no variable's does")
