"""Random programs of nested functions, conditionals, loops, two optimizers, metrics and reported losses.

``nested_programs.py FIRST COUNT`` runs the programs of COUNT seeds and prints what each reports.
"""

import json
import sys

import numpy as np
import tensorflow as tf

keras = tf.keras


def learner(rng, metric, turn):
    """Return a random way to make a step of a new model: a function of rows and targets that returns its loss."""

    def maybe(function):
        return tf.function(function) if rng.rand() < 0.6 else function

    layers = [keras.Input((5,)), keras.layers.Dense(int(rng.choice([3, 60, 400])), activation="tanh")]
    if rng.rand() < 0.3:
        layers.append(keras.layers.BatchNormalization())
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    optimizer = [keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01, momentum=0.5)][rng.randint(2)]
    optimizer.build(model.trainable_variables)
    rounds = int(rng.randint(1, 3))  # drawn here: a function may be traced any number of times
    clips, counts, kind = rng.rand() < 0.3, rng.rand() < 0.5, rng.choice(["once", "cond", "loop"])
    forward = maybe(lambda v: model(v, training=True))
    loss_of = maybe(lambda v, t: tf.reduce_mean(tf.square(forward(v) - t)))

    def apply(gradients):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    apply = maybe(apply)

    def once(v, t):
        with tf.GradientTape() as tape:
            loss = loss_of(v, t)
        gradients = tape.gradient(loss, model.trainable_variables)
        if clips:
            gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        apply(gradients)
        if counts:
            metric.update_state(loss)
        return loss

    once = maybe(once)

    def step(v, t):
        if kind == "cond":
            return tf.cond(tf.equal(turn % 2, 0), lambda: once(v, t), lambda: once(v, 0.5 * t))
        if kind == "loop":
            return tf.while_loop(lambda i, _: i < rounds, lambda i, total: (i + 1, total + once(v, t)), (0, 0.0))[1]
        return once(v, t)

    return maybe(step)


def program(seed):
    """Train a random program for a few steps; return the losses and the metric it reports."""
    rng = np.random.RandomState(seed)
    keras.utils.set_random_seed(seed)
    metric, turn = keras.metrics.Mean(), tf.Variable(0)
    steps = [learner(rng, metric, turn) for _ in range(rng.randint(1, 3))]

    @tf.function
    def both(v, t):
        losses = [step(v, t) for step in steps]
        turn.assign_add(1)
        return losses

    rows = rng.randn(77, 5).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((rows, np.sin(rows[:, :1]))).batch(16)
    reported = []
    for _ in range(2):
        for v, t in data:
            reported += [float(loss) for loss in both(v, t)]
        reported.append(float(metric.result()))
    return reported


first, count = map(int, sys.argv[1:])
for seed in range(first, first + count):
    print("RESULT", json.dumps({"seed": seed, "reported": program(seed)}), flush=True)
