"""Rank program: 50 steps of every workload on its synthetic stand-in; rank 0 prints loss curves and weight hashes."""

import json
import sys

from harness.comm.replicas import verify_replicas
from harness.comm.world import start_mpi
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import resolve
from harness.train.replica import prepare_replica
from harness.train.shard_data import load_shard
from harness.train.training import configure_tensorflow, train_epoch

STEPS = 50
BATCH = 24
RATES = {"higgs": 0.002}
WORKLOADS = [name.split("-") for name in sys.argv[1:]]

world = start_mpi()
configure_tensorflow(1)
curves = {}
for dataset, model in WORKLOADS:
    workload = resolve(
        dataset=dataset,
        model=model,
        global_batch=BATCH,
        epochs=1,
        samples=STEPS * BATCH,
        data="synthetic",
        optimizer="sgd",
        learning_rate=RATES.get(dataset, 0.1) if model == "dnn" else 0.003,
        schedule="constant",
        augment="flip" if dataset == "cifar10" else "none",
    )
    point = Point(workload=workload, layout=Layout(nodes=1, ranks_per_node=world.size))
    replica = prepare_replica(world, point, load_shard(world, point, None))
    losses = train_epoch(replica, 0).losses
    total = world.comm.allreduce(losses.astype("float64"))
    curves[f"{dataset}-{model}"] = {
        "losses": (total / BATCH).tolist(),
        "sha256": verify_replicas(world, replica.state.model.weights),
    }
if world.rank == 0:
    print("RESULT " + json.dumps(curves))
