"""Random numbers of a divided batch are a rank's part of what one process draws."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from harness.transparent.batch_rows import Place
from harness.transparent.divided_random_numbers import ScriptDraws
from harness.transparent.witness import NoWitness
from tests.labs.replacements import installed


def drawn(kind, rows):
    shape, seed = (rows, 3, 5), (7, 9)
    if kind == "dropout":
        return tf.nn.experimental.stateless_dropout(tf.ones(shape), 0.5, seed)
    if kind == "normal":
        return tf.random.stateless_normal(shape, seed)
    return tf.random.stateless_uniform(shape, seed, 0, 100, kind)


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "int32", "int64", "normal", "dropout"])
def test_a_rank_draws_its_rows_part_of_what_one_process_draws(kind):
    whole, compiled = drawn(kind, 10), tf.function(partial(drawn, kind))
    place = Place(4, 3, 10, 3)
    rows, world = SimpleNamespace(place=lambda: place), SimpleNamespace(rank=1)
    runtime = SimpleNamespace(rows=rows, world=world, witness=NoWitness(), loop=True, in_trainer=False)
    with installed(ScriptDraws(runtime)):
        np.testing.assert_array_equal(drawn(kind, 3), whole[4:7])
        place = Place(tf.constant(6), tf.constant(4), tf.constant(10), None)  # known when it runs
        np.testing.assert_array_equal(compiled(tf.constant(4)), whole[6:])
