"""Rank program: the first gradients' sums in 16 bits by every native way, and what a loss beyond the limit becomes."""

import json
import os

import numpy as np
import tensorflow as tf

from harness.base.errors import SharedError
from harness.comm.reduction_choice import select
from harness.comm.world import start_mpi
from harness.train.training import configure_tensorflow

SHAPES = ([200, 100], [3], [70_001], [0])

world = start_mpi()
configure_tensorflow(1)
found: dict[str, dict[str, object]] = {}
generator = np.random.default_rng(world.rank)
values = [generator.normal(size=shape).astype(np.float32) for shape in SHAPES]
exact = [sum(world.comm.allgather(value.astype(np.float64))) for value in values]
for choice in ("native", "messages"):
    os.environ["HARNESS_REDUCTION"] = choice
    for wire in ("bf16", "fp16"):
        reduction = select(world, [4 * 2**20], wire)
        sums = tf.function(reduction.sum)([tf.constant(value) for value in values])
        pairs = list(zip((total.numpy() for total in sums), exact, strict=True))
        errors = [np.abs(total - right).max(initial=0.0) / np.abs(right).max(initial=1.0) for total, right in pairs]
        same = len(set(world.comm.allgather(b"".join(a.numpy().tobytes() for a in sums)))) == 1
        reduction.check([tf.constant(value) for value in values], "the test")
        try:
            reduction.check([tf.constant(value * np.float32(1e-9)) for value in values], "the test")
            lost = ""
        except SharedError as error:
            lost = str(error)
        digit = {"bf16": 2.0**-7, "fp16": 2.0**-10}[wire]  # of 1: each addition alone would lose what is added
        (small,) = reduction.sum([tf.fill([5], 1.0 if world.rank == 0 else 0.375 * digit)])
        found[f"{choice} {wire}"] = {
            "rounded once": small.numpy().tolist() == [1 + digit] * 5,
            "name": reduction.name,
            "error": max(map(float, errors)),
            "same": same,
            "notes": [str(note) for note in reduction.notes],
            "lost": lost,
            "dtype": sums[0].dtype.name,
            "calls": len(reduction.take_calls()),
        }
if world.rank == 0:
    print("RESULT " + json.dumps(found))
