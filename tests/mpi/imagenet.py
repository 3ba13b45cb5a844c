"""Rank program: ImageNet networks on small images; rank 0 prints steps from equal weights, loss curves and hashes.

Training magnifies rounding, in deep networks within a dozen steps, so what is compared are single steps of a batch
and the one-row step behind it, all from the initial weights and optimizer. On several ranks two epochs are trained too.
"""

import dataclasses
import json
import sys

import numpy as np
import numpy.typing as npt

from harness.comm.replicas import verify_replicas
from harness.comm.world import start_mpi
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import resolve
from harness.train.replica import epoch_order, prepare_replica
from harness.train.shard_data import load_shard
from harness.train.training import configure_tensorflow

STEPS, BATCH, EPOCHS, COMPARED = 6, 16, 2, 2
_DIRECTION = np.cos(np.arange(9973) ** 2)
ROWS = [BATCH] * STEPS + [1]  # of every step: in the last one, all ranks but one have none


def trace(change: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Return a variable's change as two numbers: its length, and its part along a fixed direction."""
    flat = change.ravel().astype(np.float64)
    direction = np.resize(_DIRECTION, flat.size)
    return float(np.linalg.norm(flat)), float(flat @ direction / np.linalg.norm(direction))


world = start_mpi()
configure_tensorflow(1)
found = {}
for case in json.loads(sys.argv[1]):
    settings = {
        "image_size": 64,
        "classes": 4,
        "global_batch": BATCH,
        "samples": STEPS * BATCH + 1,
        "epochs": EPOCHS,
        "data": "synthetic",
        "schedule": "constant",
    } | case
    workload = resolve(dataset="imagenet", **settings)
    point = Point(workload=workload, layout=Layout(nodes=1, ranks_per_node=world.size))
    replica = prepare_replica(world, point, load_shard(world, point, None))
    model = replica.state.model
    state = [*model.weights, *replica.state.optimizer.variables]
    initial = [variable.numpy() for variable in state]
    order, partial, salt = epoch_order(replica, 0)
    steps = []
    for number in range(COMPARED + 1):
        whole = order[number : number + 1] if number else order[:0]
        losses = world.comm.allreduce(replica.epoch(whole, partial, salt).numpy().astype(np.float64))
        changes = [trace(variable.numpy() - value) for variable, value in zip(model.weights, initial, strict=False)]
        steps.append({"losses": (losses / ROWS[-len(losses) :]).tolist(), "changes": changes})
        for variable, value in zip(state, initial, strict=True):
            variable.assign(value)
    found[json.dumps(case)] = {"steps": steps}
    if world.size > 1:
        epochs = [replica.epoch(*epoch_order(replica, epoch)).numpy() for epoch in range(EPOCHS)]
        losses = world.comm.allreduce(np.concatenate(epochs).astype(np.float64))
        found[json.dumps(case)] |= {
            "losses": (losses / (ROWS * EPOCHS)).tolist(),
            "scores": dataclasses.asdict(replica.evaluate()),
            "sha256": verify_replicas(world, list(model.trainable_variables)),
        }
if world.rank == 0:
    print("RESULT " + json.dumps(found))
