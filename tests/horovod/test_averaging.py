"""Tapes and optimizers whose gradients are those of all ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness.base.errors import UserError
from harness.horovod.averaging import Accumulation, Averaging, DistributedGradientTape, DistributedOptimizer, trained
from harness.horovod.operations import Sum

pytestmark = pytest.mark.usefixtures("two_ranks")


def test_gradients_are_averaged_or_summed_and_none_stays():
    variables = [tf.Variable([1.0]), tf.Variable([1.0])]
    assert Averaging("test", op=Sum)([tf.constant([3.0]), None], variables)[0].numpy().tolist() == [6.0]
    mean, missing = Averaging("test")([tf.constant([3.0]), None], variables)
    assert mean.numpy().tolist() == [3.0]
    assert missing is None
    assert trained[id(variables[0])] is variables[0]


def test_sparse_gradients_are_gathered():
    gradient = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([1]), tf.constant([3, 1]))
    (gathered,) = Averaging("test")([gradient], [tf.Variable(tf.zeros([3, 1]))])
    assert gathered.indices.numpy().tolist() == [1, 1]
    assert gathered.values.numpy().tolist() == [[1.0], [1.0]]


def test_settings_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError):
        Averaging("test", op=Sum, gradient_predivide_factor=2.0)


@pytest.mark.parametrize(("as_mean", "last"), [(False, [9.0]), (True, [3.0])])
def test_gradients_of_several_passes_are_added_up_before_they_are_averaged(as_mean, last):
    variable = tf.Variable([0.0])
    accumulation = Accumulation(3, Averaging("test"), as_mean, True)
    steps = [accumulation.add([tf.constant([3.0])], [variable])[0].numpy().tolist() for _ in range(4)]
    assert steps == [[3.0], [6.0], last, [3.0]]
    assert int(accumulation.counter) == 1


def test_sparse_gradients_of_several_passes_need_dense_sums():
    gradient = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([1]), tf.constant([3, 1]))
    with pytest.raises(ValueError):
        Accumulation(2, Averaging("test"), False, False).add([gradient], [tf.Variable(tf.zeros([3, 1]))])


def test_a_tape_returns_the_ranks_gradients_and_keeps_none_local():
    first, second = tf.Variable(2.0), tf.Variable(3.0)
    tape = DistributedGradientTape(tf.GradientTape(persistent=True), op=Sum)
    with tape:
        loss = first * second
    assert [float(part) for part in tape.gradient(loss, [first, second])] == [6.0, 4.0]
    with pytest.raises(UserError):
        tape.register_local_source(second)


def test_an_optimizer_keeps_its_name_and_steps_with_the_ranks_gradients():
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.5), op=Sum)
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    optimizer.apply([tf.constant([1.0])], [variable])
    assert variable.numpy().tolist() == [0.0]
    assert type(optimizer).__name__ == "SGD"
    assert type(optimizer).__module__ == keras.optimizers.SGD.__module__


def test_gradients_that_were_computed_by_it_are_not_averaged_again():
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), op=Sum)
    variable = tf.Variable([1.0])
    pairs = optimizer.compute_gradients(lambda: 3.0 * variable, [variable])
    optimizer.apply_gradients(pairs)
    np.testing.assert_allclose(variable, [1.0 - 6.0])


def test_several_passes_make_one_step():
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    variable = keras.Variable([0.0])
    optimizer.build([variable])
    values = []
    for _ in range(2):
        optimizer.apply([tf.constant([1.0])], [variable])
        values.append(variable.numpy().tolist())
    assert values == [[0.0], [-2.0]]
    assert int(optimizer.iterations) == 2


def test_optimizers_of_tensorflow_1_average_what_they_compute():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=[1.0])
        optimizer = DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), op=Sum)
        ((gradient, _),) = optimizer.compute_gradients(3.0 * variable, [variable])
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(gradient).tolist() == [6.0]


@pytest.mark.parametrize(
    ("optimizer", "words", "error"),
    [
        (keras.optimizers.SGD(), {"process_set": None}, UserError),
        (tf.compat.v1.train.GradientDescentOptimizer(1.0), {"backward_passes_per_step": 2}, UserError),
        ("sgd", {}, UserError),
    ],
)
def test_what_is_not_offered_is_refused(optimizer, words, error):
    with pytest.raises(error):
        DistributedOptimizer(optimizer, **words)
