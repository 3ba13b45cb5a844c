"""Rank program: a CNN trained with its sums behind and beside the backward pass; rank 0 prints what came of both."""

import json
import os

import numpy as np

from harness.comm.replicas import verify_replicas
from harness.comm.world import start_mpi
from harness.schema.layout import Layout
from harness.schema.message_cost import OVERLAPPED
from harness.schema.point import Point
from harness.schema.presets import resolve
from harness.train.replica import prepare_replica
from harness.train.shard_data import load_shard
from harness.train.training import configure_tensorflow, train_epoch

STEPS, THREADS = 10, 2
WAYS = {"sgd": {}, "momentum": {}, "adam": {}, "bf16": {"wire": "bf16"}, "averages": {"sync": "weights:5"}}

world = start_mpi()
configure_tensorflow(THREADS)
found: dict[str, dict[str, object]] = {}
for name, settings in WAYS.items():
    workload = resolve(
        dataset="mnist",
        model="cnn",
        batch_per_rank=32,
        samples=32 * STEPS * world.size,
        data="synthetic",
        optimizer=name if not settings else "sgd",
        **settings,
    )
    point = Point(workload=workload, layout=Layout(nodes=1, ranks_per_node=world.size, threads=THREADS))
    for overlap in "01":
        os.environ["HARNESS_OVERLAP"] = overlap
        replica = prepare_replica(world, point, load_shard(world, point, None))
        columns = train_epoch(replica, 0).columns
        ready = columns["entry_s"] + columns["begin_s"]
        entries = replica.reduction.recent()[:, 2]
        called = np.isfinite(ready)
        pieces = 2 if OVERLAPPED in replica.reduction.name else 1
        first = entries[-pieces * called.sum() :: pieces]
        found[f"{name} {overlap}"] = {
            "name": replica.reduction.name,
            "weights": verify_replicas(world, replica.state.model.weights),
            "calls": int(called.sum()),
            "early": int((first < ready[called] - 1e-9).sum()),  # before this rank had all gradients
            "least_s": float(np.nanmin(columns["exit_s"] - columns["entry_s"])),
        }
if world.rank == 0:
    print("RESULT " + json.dumps(found))
