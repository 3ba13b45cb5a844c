"""Run a script on ranks whose division has a mistake: ``planted_division.py MISTAKE SCRIPT``."""

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from harness.transparent import batch_rows, collectives
from harness.transparent.keras_layers import Layers
from harness.transparent.replica_variables import ReplicaVariables
from harness.transparent.script_process import main

_held: list[Any] = []


def doubled_weight(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Have rank 1's rows count twice."""
    own, summed = original(*args, **kwargs)
    return own * (1.0 + args[0].world.rank), summed


def dropped_row(original: Callable[..., Any], total: Any, rank: int, size: int) -> Any:
    """Leave out the last row of rank 1's part."""
    begin, count = original(total, rank, size)
    return begin, count - rank


def doubled_row(original: Callable[..., Any], total: Any, rank: int, size: int) -> Any:
    """Give rank 1 the last row of rank 0's part too."""
    begin, count = original(total, rank, size)
    return begin - rank, count + rank


def same_rows(original: Callable[..., Any], total: Any, rank: int, size: int) -> Any:
    """Give all ranks the rows of rank 0."""
    begin, count = original(total, rank, size)
    return 0 * begin, count


def metric_twice(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Add up the first state of the metrics twice."""
    first, *rest = original(*args, **kwargs)
    return [2 * first if args[2] == "metrics" else first, *rest]


def metric_own(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Leave the states of the metrics as they are on each rank."""
    summed = original(*args, **kwargs)
    return list(args[1]) if args[2] == "metrics" else summed


def number_twice(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Report twice the first of a step's numbers."""
    first, *rest = original(*args, **kwargs)
    return [2 * first if args[2] == "reported numbers" else first, *rest]


def of_gradients(change: Callable[..., list[Any]]) -> Callable[..., Any]:
    """Return the mistake that makes `change` of the summed gradients; it is also given the rank's own parts."""

    def wrong(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        summed = original(*args, **kwargs)
        if args[2] != "gradients":
            return summed
        scale = kwargs.get("scale", args[3] if len(args) > 3 else 1.0)
        return change(summed, [scale * part for part in args[1]])

    return wrong


def stale(summed: list[Any], own: list[Any]) -> list[Any]:
    """Return the first gradient of the step before."""
    kept = batch_rows.own_variable(np.zeros(summed[0].shape, "float32"), "kept")  # type: ignore[arg-type]
    _held.append(kept)  # graphs do not
    before = tf.identity(kept)
    with tf.control_dependencies([before]):
        kept.assign(summed[0])
    return [before, *summed[1:]]


def turned(original: Callable[..., Any], structure: Any, *args: Any) -> Any:
    """Turn the last part of a batch, labels or weights of rows, round."""
    leaves = tf.nest.flatten(structure)
    last = max(i for i, leaf in enumerate(leaves) if tf.is_tensor(leaf))
    leaves[last] = tf.reverse(leaves[last], [0])
    return original(tf.nest.pack_sequence_as(structure, leaves), *args)


def shifted(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Give the slices of a sparse gradient to each other's rows."""
    found = original(*args, **kwargs)
    return tf.IndexedSlices(found.values, tf.roll(found.indices, 1, 0), found.dense_shape)


def unscaled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Add up sparse gradients where their mean is meant."""
    found = original(*args, **kwargs)
    return tf.IndexedSlices(2 * found.values, found.indices, found.dense_shape)


def own_statistics(original: Callable[..., Any], layers: Any, moments: Callable[..., Any], *args: Any) -> Any:
    """Normalise with the statistics of each rank's rows."""
    return moments(*args)


def unequal(original: Callable[..., Any], replica: Any, variables: Any, *args: Any) -> None:
    """Have rank 1 begin with another first variable."""
    original(replica, variables, *args)
    if replica.world.rank and args == ("initial weights",):
        with tf.init_scope():
            variables[0].assign(variables[0].numpy() + 0.05)


_SUM = (collectives.Collectives, "sum")
PLACES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "doubled-weight": (collectives.Collectives, "_weight", doubled_weight),
    "dropped-row": (batch_rows, "bounds", dropped_row),
    "doubled-row": (batch_rows, "bounds", doubled_row),
    "same-rows": (batch_rows, "bounds", same_rows),
    "metric-twice": (*_SUM, metric_twice),
    "metric-own": (*_SUM, metric_own),
    "number-twice": (*_SUM, number_twice),
    "lost-gradient": (*_SUM, of_gradients(lambda summed, *_: [tf.zeros_like(summed[0]), *summed[1:]])),
    "lost-last": (*_SUM, of_gradients(lambda summed, *_: [*summed[:1], tf.zeros_like(summed[1]), *summed[2:]])),
    "half-scale": (*_SUM, of_gradients(lambda summed, *_: [part / 2 for part in summed])),
    "one-percent": (*_SUM, of_gradients(lambda summed, *_: [1.01 * part for part in summed])),
    "rank-twice": (*_SUM, of_gradients(lambda summed, own: [a + b for a, b in zip(summed, own, strict=True)])),
    "rank-lost": (*_SUM, of_gradients(lambda summed, own: [2 * b for b in own])),
    "sign": (*_SUM, of_gradients(lambda summed, *_: [-summed[0], *summed[1:]])),
    "turned": (*_SUM, of_gradients(lambda summed, *_: [tf.reverse(summed[0], [0]), *summed[1:]])),
    "stale-gradient": (*_SUM, of_gradients(stale)),
    "swapped-order": (batch_rows, "some", turned),
    "sparse-shifted": (collectives.Collectives, "slices", shifted),
    "sparse-sum": (collectives.Collectives, "slices", unscaled),
    "own-statistics": (Layers, "_moments", own_statistics),
    "unequal-start": (ReplicaVariables, "start_equal", unequal),
}

if __name__ == "__main__":
    owner, name, wrong = PLACES[sys.argv.pop(1)]
    original = getattr(owner, name)
    process = os.getpid()

    def planted(*args: Any, **kwargs: Any) -> Any:
        """Make the mistake on a rank, and not in the witness that is forked from it."""
        return wrong(original, *args, **kwargs) if os.getpid() == process else original(*args, **kwargs)

    setattr(owner, name, planted)
    main()
