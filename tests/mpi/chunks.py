"""Rank program: sums by messages of at most 100,000 elements, as those of more than 2^30 are made."""

import itertools
import json

import numpy as np
import tensorflow as tf

from harness.comm.native_reduction import NativeReduction
from harness.comm.world import start_mpi
from harness.schema.message_cost import Algorithm
from tests.mpi.limits import load_limited

world = start_mpi()
options = {"largest": 2**20, "algorithm": Algorithm.MESSAGES, "guard": True}
library = load_limited()
reductions = [NativeReduction(world.comm, library, overlap=overlap, **options) for overlap in (False, True)]
errors = []
for reduction, dtype in itertools.product(reductions, (np.float32, np.float64)):
    values = [np.random.default_rng(world.rank).normal(size=size).astype(dtype) for size in (7001, 10, 401_000)]
    totals = reduction.sum([tf.constant(value) for value in values], label="chunks")
    for value, total in zip(values, totals, strict=True):
        errors.append(float(np.abs(total.numpy() - sum(world.comm.allgather(value))).max()))
if world.rank == 0:
    calls = [len(reduction.take_calls()) for reduction in reductions]
    print("RESULT " + json.dumps({"error": max(errors), "calls": calls}))
