"""Rank program: a few steps of an ImageNet network on small images; rank 0 prints loss curves and weight hashes."""

import dataclasses
import json
import sys

from harness.comm.replicas import verify_replicas
from harness.comm.world import start
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import resolve
from harness.train.load import load
from harness.train.run import configure_tensorflow, prepare_replica, train_epoch

STEPS, BATCH, EPOCHS = 6, 16, 2
ROWS = [BATCH] * STEPS + [1]  # of every step: in the last one, all ranks but one have none

world = start()
configure_tensorflow(1)
curves = {}
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
    replica = prepare_replica(world, point, load(world, point, None))
    losses = [world.comm.allreduce(train_epoch(replica, epoch)[0].astype("float64")) for epoch in range(EPOCHS)]
    scores = replica.evaluate()
    own = list(replica.state.model.trainable_variables)
    curves[json.dumps(case)] = {
        "losses": [float(loss) / rows for epoch in losses for loss, rows in zip(epoch, ROWS, strict=True)],
        "scores": dataclasses.asdict(scores),
        "sha256": verify_replicas(world, own),
    }
if world.rank == 0:
    print("RESULT " + json.dumps(curves))
