"""A script in Horovod's own words: every rank prints what it has found, a line of JSON."""

import json
import sys
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rank, size = hvd.rank(), hvd.size()
found = {"rank": rank, "drawn": [float(np.random.random()), float(tf.random.uniform([]))]}


def refused(action):
    try:
        action()
    except tf.errors.OpError as error:
        return type(error).__name__, str(error).splitlines()[0]
    return None


def all_kinds(in_graph):
    wrap = tf.function if in_graph else lambda function: function
    rows = tf.reshape(tf.range(2 * (rank + 1), dtype=tf.float32), [-1, 2]) + 10 * rank

    @wrap
    def exchanges():
        total = hvd.grouped_allreduce([tf.constant([rank + 1, 5], tf.int16), tf.constant([0.5, rank])], op=hvd.Sum)
        extremes = [hvd.allreduce(tf.constant(rank + 2.0), op=op) for op in (hvd.Min, hvd.Max, hvd.Product)]
        gathered = hvd.allgather(rows)
        cast = hvd.broadcast(tf.constant([rank == 1, True]), 1)
        half = hvd.allreduce(tf.constant([1.5, 2], tf.float16), op=hvd.Average)
        tiny = hvd.allreduce(tf.fill([40], tf.constant(100, tf.int8)), op=hvd.Sum)  # beyond its range it begins again
        return [*total, *extremes, gathered, cast, half, tiny]

    with tf.GradientTape() as tape:
        x = tf.ones([rank + 1, 2])
        tape.watch(x)
        loss = tf.reduce_sum(wrap(lambda: hvd.allgather(x) * 3)())
    values = [value.numpy().tolist() for value in exchanges()]
    wrong = [
        lambda: wrap(lambda: hvd.allreduce(tf.ones(3 + rank), name="lengths"))(),
        lambda: wrap(lambda: hvd.allreduce(tf.ones(3, tf.float64 if rank else tf.float32), name="types"))(),
        lambda: wrap(lambda: hvd.broadcast(tf.ones(3), rank, name="roots"))(),
        lambda: wrap(lambda: hvd.allreduce(tf.ones(3), op=hvd.Min if rank else hvd.Max, name="operations"))(),
        lambda: wrap(lambda: hvd.allreduce(tf.ones(3), name=f"name {rank}"))(),
        lambda: wrap(lambda: hvd.allgather(tf.ones([]), name="scalar"))(),
    ]
    return values, tape.gradient(loss, x).numpy().tolist(), [refused(each) for each in wrong]


found["eager"], found["graph"] = all_kinds(False), all_kinds(True)
found["object"] = hvd.broadcast_object({"from": rank}, root_rank=1)

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    session.run(hvd.broadcast_global_variables(0))  # there are none yet
    fed = tf.compat.v1.placeholder(tf.float32, [])
    own = tf.compat.v1.get_variable("own", initializer=rank + 3.0)
    total, same = hvd.allreduce(fed * own, op=hvd.Sum), hvd.broadcast_global_variables(0)
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(same)  # feeds nothing to the exchange that was built before it
    found["session"] = float(session.run(total, {fed: 2.0}))

kept = tf.Variable([float(rank), 2.0])
tape = hvd.DistributedGradientTape(tf.GradientTape(), compression=hvd.Compression.fp16)
with tape:
    loss = tf.reduce_sum(kept * kept)
found["taped"] = tape.gradient(loss, [kept])[0].numpy().tolist()
hvd.broadcast_variables([kept], root_rank=1)
found["kept"] = kept.numpy().tolist()
found["last"] = hvd.join()
print("FOUND", json.dumps(found), flush=True)
Path(f"found-{rank}.json").write_text(json.dumps(found))  # every rank's own: nothing is kept apart
sys.exit(0)
