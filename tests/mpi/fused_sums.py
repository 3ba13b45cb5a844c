"""A sum for each of many small tensors, as public benchmarks write it: every rank prints what it has counted.

The sums of a function, of a session, of branches and of loops; those that wait for each other, and those that a fetch
leaves out. Before each comes the same by Python, one exchange a tensor.
"""

import json

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from harness.horovod.mpi_exchange import AVERAGE, SUM, Request
from harness.horovod.ranks import current_ranks

hvd.init()
rank, size = hvd.rank(), hvd.size()
generator = np.random.default_rng(rank)
tensors = [generator.normal(size=(3 + i % 5, i % 7)).astype(np.float32) for i in range(65)]
halves = [array.astype(np.float16) for array in tensors[:3]]
found = {}


def calls():
    """Return how many sums the native operation has made since it was last asked."""
    return sum(len(reduction.take_calls()) for reduction in current_ranks().sums.reductions)


def one_by_one(arrays, op=SUM):
    return [current_ranks().exchange.run(Request("allreduce", "x", op), [array])[0] for array in arrays]


def same(values, expected):
    return all(np.array_equal(value, other) for value, other in zip(values, expected, strict=True))


def count(name, function, expected):
    """Run `function` twice, the first compiles; note the calls of the second and whether its values are right."""
    function()
    calls()
    values = function()
    found[name] = [calls(), same([np.asarray(value) for value in values], expected)]


@tf.function
def independent():
    return [hvd.allreduce(array, op=hvd.Sum) for array in tensors]


@tf.function
def averaged():
    return [hvd.allreduce(array, op=hvd.Average) for array in halves]


@tf.function
def chained():
    first = [hvd.allreduce(array, op=hvd.Sum) for array in tensors[:3]]
    return [hvd.allreduce(total, op=hvd.Sum) for total in first]


@tf.function
def branched(both):
    total = hvd.allreduce(tensors[1], op=hvd.Sum)
    more = tf.cond(both, lambda: [hvd.allreduce(array, op=hvd.Sum) for array in tensors[2:5]], lambda: tensors[2:5])
    return [total, *more]


@tf.function
def looped():
    total = tf.zeros(tensors[1].shape)
    other = tf.zeros(tensors[2].shape)
    for _ in tf.range(4):
        total += hvd.allreduce(tensors[1], op=hvd.Sum)
        other += hvd.allreduce(tensors[2], op=hvd.Sum)
    return [total, other]


sums = one_by_one(tensors)
count("independent", independent, sums)
count("averaged", averaged, one_by_one(halves, AVERAGE))
count("chained", chained, one_by_one(sums[:3]))
count("branch taken", lambda: branched(tf.constant(True)), sums[1:5])
count("branch left", lambda: branched(tf.constant(False)), [sums[1], *tensors[2:5]])
count("looped", looped, [4 * sums[1], 4 * sums[2]])

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    fed = tf.compat.v1.placeholder(tf.float32, [])
    apart = hvd.allreduce(tf.constant(tensors[1]), op=hvd.Sum)  # fetched without what is fed to the others
    totals = [hvd.allreduce(array * fed, op=hvd.Sum) for array in tensors]
    count("session", lambda: session.run([*totals, apart], {fed: 1.0}), [*sums, sums[1]])
    count("fetched alone", lambda: [session.run(apart)], [sums[1]])
    count("some fetched", lambda: session.run(totals[3:9], {fed: 1.0}), sums[3:9])


@tf.function
def misfit():
    shape = [2, 3] if rank == 0 else [3, 2]
    return [hvd.allreduce(tf.ones(2), name="first"), hvd.allreduce(tf.ones(shape), name="second")]


try:
    misfit()
except tf.errors.FailedPreconditionError as error:
    found["misfit"] = error.message
count("after it", independent, sums)
found = current_ranks().world.comm.allgather(found)
if rank == 0:
    print("FOUND", json.dumps(found), flush=True)
