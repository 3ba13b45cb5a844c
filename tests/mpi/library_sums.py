"""Rank program: a few sums by every way of summing, against sums in float64; rank 0 prints the largest errors."""

import json
import os

import numpy as np
import tensorflow as tf

from harness.comm.reduction_choice import select
from harness.comm.world import start_mpi
from harness.schema.message_cost import Algorithm
from harness.train.training import configure_tensorflow

SHAPES = ([3], [200, 100], [70_001], [0])  # a small one, which is packed, large ones, and none at all
WAYS = (Algorithm.NATIVE, Algorithm.MESSAGES, Algorithm.BRIDGE)

world = start_mpi()
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
    errors[reduction.name] = max(differences)
if world.rank == 0:
    print("RESULT " + json.dumps({"ranks": world.size, "errors": errors}))
