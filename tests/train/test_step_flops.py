"""Floating-point operations of a traced step against counts by hand."""

import keras
import pytest
import tensorflow as tf

from harness import models
from harness.train.step_flops import FlopCount, count_flops

ROWS = 64


def traced(model: keras.Model, *, compiled: bool = False) -> FlopCount:
    """Return the operations of a forward and backward pass of `ROWS` rows, also where XLA compiles it."""

    def differentiate(inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs, training=True))
        return [loss, *tape.gradient(loss, [variable.value for variable in model.trainable_variables])]

    inner = tf.function(differentiate, jit_compile=True) if compiled else differentiate
    shape = tf.TensorSpec([ROWS, *model.input_shape[1:]])
    graph = tf.function(lambda inputs: inner(inputs)).get_concrete_function(shape).graph
    return count_flops(graph.outputs)


@pytest.mark.parametrize("compiled", [False, True])
def test_mnist_dnn_is_as_counted_by_hand(compiled: bool) -> None:
    """Every layer but the first has a product forward and two backward; the first needs no gradient of its input."""
    model = models.build_network("dnn", dataset="mnist", features=(28, 28, 1), classes=10, init="glorot")
    kernels = [tuple(variable.shape) for variable in model.trainable_variables if len(variable.shape) == 2]
    first, *others = [rows * columns for rows, columns in kernels]
    counted = traced(model, compiled=compiled)
    assert counted == FlopCount(flops=2 * ROWS * (2 * first + 3 * sum(others)))


def test_convolutions_are_as_counted_by_hand() -> None:
    """5 x 5 of 3 channels to 8 on 16 x 16 images, then 3 x 3 to 4 with stride 2 and groups of 2."""
    layers = [
        keras.layers.Input((16, 16, 3)),
        keras.layers.Conv2D(8, 5, padding="same"),
        keras.layers.Conv2D(4, 3, strides=2, padding="same", groups=2),
        keras.layers.DepthwiseConv2D(3, padding="same"),
    ]
    first = 16 * 16 * 8 * (5 * 5 * 3)
    second = 8 * 8 * 4 * (3 * 3 * 4)
    third = 8 * 8 * 4 * (3 * 3)
    assert traced(keras.Sequential(layers)) == FlopCount(flops=2 * ROWS * (2 * first + 3 * second + 3 * third))


def test_attention_is_counted_and_a_recurrent_loop_is_not() -> None:
    rows = keras.layers.Input((12, 16))
    attention = keras.Model(rows, keras.layers.MultiHeadAttention(2, 8)(rows, rows))
    counted = traced(attention)
    projections = 4 * 12 * 16 * (2 * 8)  # query, key, value and output
    products = 2 * 2 * 12 * 12 * 8  # scores and their use
    forward = 2 * ROWS * (projections + products)
    inputs_gradient = 2 * ROWS * 3 * 12 * 16 * (2 * 8)  # not needed: the network's input is no variable
    assert counted == FlopCount(flops=3 * forward - inputs_gradient)
    recurrent = traced(keras.Sequential([keras.layers.Input((12, 16)), keras.layers.SimpleRNN(8)]))
    assert recurrent.uncounted
