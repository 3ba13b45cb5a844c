"""Each rank gets its part of every batch of Keras's data adapters, whatever the batches come from."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from harness.schema.record_notes import NoteCode
from harness.transparent.batch_rows import BatchShare
from harness.transparent.divided_keras_data import (
    ArrayPartAdapter,
    batch_size_of,
    divide_adapters,
    map_elements,
    rows_per_batch,
)
from harness.transparent.patch import Refused
from harness.transparent.runtime import switched_on
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed

NUMBERS = np.arange(10)


class DividedAdapters:
    """Keras's data adapters, divided over the ranks of `runtime`."""

    def __init__(self, runtime):
        self.runtime = runtime

    def install(self):
        divide_adapters(self.runtime)


def adapter_of(runtime, x, **words):
    """Return what Keras makes of `x` on a rank."""
    with installed(DividedAdapters(runtime)):
        return data_adapters.get_data_adapter(x=x, **words)


def rows(adapter):
    """Return the rows of each batch that count."""
    batches = []
    for element in adapter.get_tf_dataset():
        is_share = isinstance(element, BatchShare)
        data = tf.nest.flatten(element.data if is_share else element)[0].numpy().ravel()
        count = len(data) if not is_share or element.rows is None else int(element.rows)
        batches.append(data[:count].tolist())
    return batches


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_ranks_parts_of_arrays_are_keras_s_batches(size):
    runtimes = [alike_runtime(rank, size, batch="global") for rank in range(size)]
    parts = [rows(adapter_of(runtime, NUMBERS, batch_size=4)) for runtime in runtimes]
    batches = [[row for rank_rows in parts for row in rank_rows[step]] for step in range(3)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_batch_per_rank_makes_batches_of_all_ranks():
    adapter = adapter_of(alike_runtime(1, batch="per-rank"), NUMBERS, batch_size=2)
    assert adapter.num_batches == 3
    assert adapter.harness_factor == 2
    assert rows(adapter) == [[2, 3], [6, 7], [9]]


def test_uneven_batches_are_noted_for_later_data():
    runtime = alike_runtime(batch="global")
    adapter_of(runtime, NUMBERS[:8], batch_size=4)
    assert not runtime.uneven
    adapter_of(runtime, NUMBERS, batch_size=4)
    assert runtime.uneven


def test_a_data_set_is_divided_too():
    dataset = tf.data.Dataset.from_tensor_slices(NUMBERS).batch(4)
    assert rows(adapter_of(alike_runtime(1, batch="global"), dataset)) == [[2, 3], [6, 7], [9]]
    assert rows(adapter_of(alike_runtime(1, batch="per-rank"), dataset)) == [[4, 5, 6, 7], [9]]


def test_batches_of_unknown_size_are_those_of_all_ranks():
    runtime = alike_runtime(0, batch="per-rank")
    assert rows(adapter_of(runtime, tf.data.Dataset.from_tensors(tf.range(6)))) == [[0, 1, 2]]
    assert [note.code for note in runtime.notes] == [NoteCode.BATCHES_OF_UNKNOWN_SIZE]


def test_one_process_gets_all_rows_in_keras_s_order():
    source = ArrayDataAdapter(NUMBERS, batch_size=4)
    assert rows(ArrayPartAdapter.alone(source)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("most", [2, 4])
def test_a_rank_with_fewer_rows_of_its_own_makes_as_many_steps(most):
    runtime = alike_runtime(1)
    runtime.own_rows.present = True
    runtime.collectives.gather = lambda value, label: [most, value]
    adapter = adapter_of(runtime, NUMBERS[:8], batch_size=4)
    assert adapter.num_batches == most
    assert rows(adapter) == [[0, 1, 2, 3], [4, 5, 6, 7]] + [[]] * (most - 2)


def test_an_unknown_number_of_own_batches_is_refused_where_nobody_gives_the_steps():
    runtime = alike_runtime()
    runtime.own_rows.present = True
    with pytest.raises(Refused):
        adapter_of(runtime, ((NUMBERS[:1],) for _ in range(3)))
    assert adapter_of(runtime, ((NUMBERS[:1],) for _ in range(3)), steps_per_epoch=3).num_batches is None


def test_the_batch_size_of_a_data_set_is_that_of_its_last_batching():
    numbers = tf.data.Dataset.range(10)
    assert batch_size_of(numbers) is None
    assert batch_size_of(numbers.batch(2).batch(3).prefetch(1).with_options(tf.data.Options())) == 3
    assert rows_per_batch(ArrayDataAdapter(NUMBERS, batch_size=4)) == 4


def test_a_tuple_is_one_element():
    pairs = map_elements(tf.data.Dataset.from_tensor_slices((NUMBERS, -NUMBERS)), lambda pair: pair[0] + pair[1])
    assert {int(number) for number in pairs} == {0}


@pytest.mark.parametrize("is_own", [False, True])
def test_rows_of_whole_batches_have_a_place_by_which_they_draw(is_own):
    runtime = alike_runtime(1)
    runtime.own_rows.present = is_own
    with switched_on(runtime.undivided):
        adapter = adapter_of(runtime, NUMBERS[:8], batch_size=4)
    places = [element.place.numpy().tolist() for element in adapter.get_tf_dataset()]
    assert places == [[4, 8] if is_own else [0, 0]] * 2


def test_autograph_does_not_rewrite_what_a_data_set_calls_of_ours():
    files = []

    def change(element):
        files.append(sys._getframe().f_code.co_filename)
        return element

    map_elements(tf.data.Dataset.range(2), change)
    assert set(files) == {__file__}
