"""Floating-point operations of a traced step against counts by hand."""

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from harness import models
from harness.comm.reduction import BridgeReduction
from harness.comm.synchroniser import Synchroniser
from harness.models.global_batch_layers import BatchPart
from harness.schema.presets import resolve
from harness.schema.sync_policies import Gradients, NoSync, SyncPolicy
from harness.train.optimizer import build_optimizer
from harness.train.step import FlopCount, TrainState, count_flops, row_losses, smooth, train_step
from tests.labs.communicators import Alone

BATCH_ROWS = 8
STEPS = 3
EXCHANGES = ("Harness", "PyFunc", "EagerPyFunc", "_Send", "_Recv")

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


def test_smoothed_loss_is_the_cross_entropy_of_the_smoothed_labels():
    logits = tf.constant(np.random.default_rng(0).normal(size=(5, 4)), tf.float32)
    labels = tf.constant([0, 1, 2, 3, 0])
    targets = tf.one_hot(labels, 4) * 0.9 + 0.1 / 4
    expected = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    found = smooth(row_losses("cross-entropy", labels, logits), logits, 0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class Averages(BridgeReduction):
    """Sums of one rank, which are the gradients themselves."""

    def sum(self, tensors: list[tf.Tensor], scale: float = 1.0, label: str = "sum") -> list[tf.Tensor]:
        return [tf.identity(tensor) for tensor in tensors]


def trained(
    *, compiled: bool, policy: SyncPolicy, optimizer: str, precision: str = "float32"
) -> tuple[list[np.ndarray], list[str], TrainState]:
    """Return weights after `STEPS` steps, the types of the operations of a step's graph, and the state."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Input((6, 6, 1)),
        keras.layers.Conv2D(4, 3, activation="relu", dtype=precision),
        keras.layers.Flatten(),
        keras.layers.Dense(3, dtype=precision),
    ]
    model = keras.Sequential(layers)
    workload = resolve(dataset="mnist", model="dnn", optimizer=optimizer, learning_rate=0.01, precision=precision)
    made = build_optimizer(workload, steps_per_epoch=STEPS, ranks=1)
    made.build(model.trainable_variables)
    state = TrainState(
        model=model,
        optimizer=made,
        loss="cross-entropy",
        synchroniser=Synchroniser(policy=policy, reduction=Averages(Alone()), weight=1.0),
        part=BatchPart(),
        xla=compiled,
        xla_draw=compiled,
        xla_update=compiled,
    )
    rows = tf.constant(np.random.default_rng(2).normal(size=(4 * BATCH_ROWS, 6, 6, 1)).astype(np.float32))
    labels = tf.constant(np.arange(4 * BATCH_ROWS, dtype=np.int32) % 3)
    step = tf.function(stepping(state, rows, labels), autograph=False)
    order = np.random.default_rng(3).permutation(4 * BATCH_ROWS).astype(np.int32)
    for number in range(STEPS):
        step(tf.constant(order[number * BATCH_ROWS : (number + 1) * BATCH_ROWS]))
    graph = step.get_concrete_function(tf.TensorSpec([BATCH_ROWS], tf.int32)).graph
    return [weight.numpy() for weight in model.weights], [op.type for op in graph.get_operations()], state


def stepping(state: TrainState, rows: tf.Tensor, labels: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    def step(numbers: tf.Tensor) -> tf.Tensor:
        return train_step(
            state, lambda: (tf.gather(rows, numbers), tf.gather(labels, numbers)), range(BATCH_ROWS), BATCH_ROWS
        )

    return step


@pytest.mark.slow  # XLA compiles
@pytest.mark.parametrize("policy", [NoSync(), Gradients()])
@pytest.mark.parametrize(
    ("optimizer", "precision"), [("momentum", "float32"), ("adam", "float32"), ("sgd", "mixed_float16")]
)
def test_a_step_that_xla_compiles_makes_the_same_weights(policy: SyncPolicy, optimizer: str, precision: str) -> None:
    plain, _, counted = trained(compiled=False, policy=policy, optimizer=optimizer, precision=precision)
    compiled, types, state = trained(compiled=True, policy=policy, optimizer=optimizer, precision=precision)
    tolerance = 1e-5 if precision == "float32" else 2e-3
    for weight, expected in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=tolerance, atol=tolerance)
    assert state.flops.per_row == counted.flops.per_row > 0
    calls = types.count("StatefulPartitionedCall") + types.count("PartitionedCall")
    assert calls == (1 if isinstance(policy, NoSync) else 2)  # one cluster, or one before the sum and one after it


@pytest.mark.slow  # XLA compiles
def test_a_step_of_one_rank_has_no_exchange_and_no_way_through_the_host() -> None:
    for compiled in (False, True):
        _, types, _ = trained(compiled=compiled, policy=NoSync(), optimizer="momentum")
        assert not [kind for kind in types if kind.startswith(EXCHANGES)]
