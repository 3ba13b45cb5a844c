"""Rank program: `harness train` several times in one MPI world. Argument: a list of argument lists, as JSON.

Words like NAME=VALUE in front of the arguments set variables of the environment for that training and those after it.
Behind each, rank 0 prints OPENED and how many files of prepared data every rank opened in it, as JSON. Behind all it
prints RESUMED: by sync policy, a list of which is the second argument, the weights after two epochs, and those of two
where another replica makes the second.
"""

import json
import os
import sys

from harness.cli.command_train import train_command
from harness.comm.replicas import verify_replicas
from harness.comm.world import start_mpi
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import resolve
from harness.train.checkpointing import gather_variables, restore_variables
from harness.train.replica import prepare_replica
from harness.train.shard_data import load_shard
from harness.train.training import train_epoch

opened: list[str] = []
sys.addaudithook(lambda event, what: opened.append(str(what[0])) if event == "open" else None)
for arguments in json.loads(sys.argv[1]):
    while "=" in arguments[0]:
        name, _, value = arguments.pop(0).partition("=")
        os.environ[name] = value
    opened.clear()
    train_command.main(arguments, prog_name="harness train", standalone_mode=False)
    counts = start_mpi().comm.gather(sum("/prepared/" in path for path in opened), root=0)
    if counts is not None:
        print("OPENED", json.dumps(counts), flush=True)


def resumed(sync: str) -> tuple[str, str]:
    """Return the weights that are trained in one piece, and from what a checkpoint has of the first epoch on."""
    world = start_mpi()
    workload = resolve(
        dataset="adult",
        model="dnn",
        global_batch=48,
        samples=500,
        epochs=2,
        data="synthetic",
        optimizer="momentum",
        sync=sync,
    )
    point = Point(workload=workload, layout=Layout(nodes=1, ranks_per_node=world.size))
    one, other = (prepare_replica(world, point, load_shard(world, point, None)) for _ in range(2))
    train_epoch(one, 0)
    arrays = gather_variables(one)
    restore_variables(other, arrays, world.size)
    for replica in (one, other):
        train_epoch(replica, 1)
    whole, later = (verify_replicas(world, replica.state.model.weights) for replica in (one, other))
    return whole, later


found = {sync: resumed(sync) for sync in json.loads(sys.argv[2])}
if start_mpi().rank == 0:
    print("RESUMED", json.dumps(found), flush=True)
