"""Rank program: ranks that meet in different exchanges. ``mismatch.py CHOICE FAULT``; prints ENDED if unnoticed."""

import os
import sys
import threading

import tensorflow as tf

from harness.comm.reduction_choice import select
from harness.comm.world import start_mpi

choice, fault = sys.argv[1:]
os.environ["HARNESS_REDUCTION"] = choice
world = start_mpi()
reduction = select(world, [2**20], guard=True)
gradients, losses = tf.ones([1000]), tf.ones([1000])  # of one size: only the labels differ
reduction.sum([gradients], label="gradients")
if fault == "two at once":
    if world.rank == 0:
        # Rank 1 never comes: the first thread is inside when the main one follows.
        threading.Thread(target=lambda: reduction.sum([gradients], label="gradients"), daemon=True).start()
        while reduction.recent()[-1][3]:  # until it is inside
            pass
        reduction.sum([losses], label="reported losses")
    world.comm.Barrier()
elif world.rank == 0:
    reduction.sum([gradients], label="gradients")
    reduction.sum([losses], label="reported losses")
else:
    reduction.sum([losses], label="reported losses")
    reduction.sum([gradients], label="gradients")
print("ENDED")
