"""Rank program: a few sums by every way of summing, against sums in float64; rank 0 prints the largest errors."""

import json
import os

import numpy as np

from harness.comm.world import World, start_mpi
from harness.schema.message_cost import Algorithm

SHAPES = ([3], [200, 100], [70_001], [0])  # a small one, which is packed, large ones, and none at all
WAYS = (Algorithm.NATIVE, Algorithm.MESSAGES, Algorithm.BRIDGE)


def find_errors(world: World) -> dict[str, float]:
    """Return the largest difference of a sum from that in float64, by way of summing."""
    import tensorflow as tf  # after MPI, as in every rank of the harness

    from harness.comm.reduction_choice import select
    from harness.train.training import configure_tensorflow

    configure_tensorflow(1)
    values = [np.random.default_rng(world.rank).normal(size=shape).astype(np.float32) for shape in SHAPES]
    expected = [sum(world.comm.allgather(value.astype(np.float64))) for value in values]
    errors: dict[str, float] = {}
    for way in WAYS:
        os.environ["HARNESS_REDUCTION"] = way
        reduction = select(world, [4 * 2**20])
        totals = tf.function(reduction.sum)([tf.constant(value) for value in values], 1.0)
        differences = [
            float(np.abs(total.numpy() - right).max(initial=0.0)) for total, right in zip(totals, expected, strict=True)
        ]
        errors[f"{way}: {reduction.name}"] = max(differences)
    return errors


here = start_mpi()
found = find_errors(here)
if here.rank == 0:
    print("RESULT " + json.dumps({"ranks": here.size, "errors": found}))
